"""Mistakes in claims, templates and classes, given the slices of a cluster.

A selector that fails on any device blocks every pod that uses it, on every node with that device.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from plugwright.allocator import SliceIndex
from plugwright.allocator.cel import SelectorError
from plugwright.allocator.published_slices import PublishedSlice, SliceDevice, compiled, device_name
from plugwright.apiserver.kinds import claim_validation
from plugwright.errors import AllocationAborted
from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import API_VERSION
from plugwright.explain.oracle import Oracle
from plugwright.explain.request_relaxations import subrequests
from plugwright.explain.search import Search
from plugwright.explain.wording import sentence
from plugwright.explain.world import ApiObject, ClaimOrigin, World, identity
from plugwright.text import clean

__all__ = ["LintFinding", "LintReport", "lint_objects"]

_NAMED = re.compile(
    r"""device\.(attributes|capacity)\[\s*["']([^"']+)["']\s*\](?:\.\??(\w+)|\[\??\s*["'](\w+)["']\s*\])"""
)
_KINDS = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate")


class LintFinding(Struct, frozen=True, rename="camel"):
    """`level` is `error` for objects that cannot work, `warning` for those that match nothing at present.

    `code` is `selector-invalid`, `selector-fails`, `selector-matches-nothing`, `unpublished`, `class-missing`,
    `invalid` or `never-satisfied`. `path` is the field, such as `spec.devices.requests[0].exactly.selectors[0]`.
    """

    level: str
    code: str
    kind: str
    namespace: str
    name: str
    path: str
    text: str


class LintReport(Struct, frozen=True, rename="camel", kw_only=True):
    api_version: str = API_VERSION
    kind: str = "LintReport"
    checked: int
    findings: tuple[LintFinding, ...] = ()
    unseen: tuple[str, ...] = ()


def lint_objects(world: World, objects: Iterable[ApiObject]) -> LintReport:
    """Checks objects; `world` contains the classes that they use, including those of the same file."""
    checker = _Linter(world)
    judged = [entry for entry in objects if entry.get("kind") in _KINDS]
    findings = tuple(found for entry in judged for found in checker.check(entry))
    return LintReport(checked=len(judged), findings=findings, unseen=world.unseen)


class _Linter:
    def __init__(self, world: World) -> None:
        free = World(
            nodes=tuple(map(_open, world.nodes)), slices=tuple(map(_untainted, world.slices)),
            classes=world.classes, version=world.version,
        )  # fmt: skip
        self._oracle = Oracle(free)
        index = SliceIndex(world.slices)
        self._slices: list[PublishedSlice] = [one for pool in index.by_pool.values() for one in pool]
        self._devices: list[SliceDevice] = [device for one in self._slices for device in one.devices]
        self._known = _published(self._devices)
        self._capacities = {name for device in self._devices for name in device.capacity}

    def check(self, entry: ApiObject) -> Iterator[LintFinding]:
        spec: Any = entry.get("spec") or {}
        if entry["kind"] == "DeviceClass":
            yield from self._selectors(entry, "spec.selectors", spec.get("selectors"), self._devices)
            return
        of_template = entry["kind"] == "ResourceClaimTemplate"
        spec, prefix = ((spec.get("spec") or {}), "spec.spec") if of_template else (spec, "spec")
        devices = spec.get("devices") or {}
        found: list[LintFinding] = []
        for path, _, request in subrequests(devices):
            where = prefix + _path(path[1:])
            found += self._request(entry, where, request)
        for number, constraint in enumerate(devices.get("constraints") or ()):
            where = f"{prefix}.devices.constraints[{number}]"
            name = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
            if name and not any(device.attribute(name) for device in self._devices):
                text = f"no device has the attribute {name}, so the constraint excludes every device"
                found.append(_finding(entry, "error", "unpublished", where, text))
        found += _rejected(entry)
        yield from found
        if not any(finding.level == "error" for finding in found):
            yield from self._satisfiable(entry, spec, prefix)

    def _request(self, entry: ApiObject, where: str, request: ApiObject) -> Iterator[LintFinding]:
        name = str(request.get("deviceClassName"))
        device_class = self._oracle.allocator.classes.get(name)
        if device_class is None:
            yield _finding(entry, "error", "class-missing", where, f"DeviceClass {name} does not exist")
            return
        for capacity in (request.get("capacity") or {}).get("requests") or {}:
            if capacity not in self._capacities:
                text = f"no driver publishes the capacity {capacity}, so the request excludes every device"
                yield _finding(entry, "error", "unpublished", f"{where}.capacity.requests.{capacity}", text)
        selected, problems = self._of_class(device_class)
        yield from (_finding(entry, "error", "selector-fails", where, f"DeviceClass {name}: {one}") for one in problems)
        if not problems:
            yield from self._selectors(entry, f"{where}.selectors", request.get("selectors"), selected)

    def _of_class(self, device_class: ApiObject) -> tuple[list[SliceDevice], list[str]]:
        """The devices selected by a class, and why its selectors fail."""
        selected, problems = self._devices, list[str]()
        for selector in (device_class.get("spec") or {}).get("selectors") or ():
            found, failed, _ = _evaluated(_expression(selector), selected)
            selected, problems = found, [*problems, *failed[:1]]
        return selected, problems

    def _selectors(
        self, entry: ApiObject, where: str, selectors: Sequence[ApiObject] | None, devices: list[SliceDevice]
    ) -> Iterator[LintFinding]:
        for number, selector in enumerate(selectors or ()):
            path, expression = f"{where}[{number}]", _expression(selector)
            matching, failed, is_invalid = _evaluated(expression, devices)
            if failed:
                code = "selector-invalid" if is_invalid else "selector-fails"
                more = "" if is_invalid else f" ({len(failed)} of {len(devices)} devices): its pods wait on every node"
                yield _finding(entry, "error", code, path, failed[0] + more)
            unpublished = list(self._unpublished(expression))
            for name in unpublished:
                yield _finding(entry, "warning", "unpublished", path, f"no driver publishes {name}")
            if not matching and not failed:
                text = f"matches none of {len(devices)} devices"
                yield _finding(entry, "warning", "selector-matches-nothing", path, text)
                return
            devices = matching

    def _unpublished(self, expression: str) -> Iterator[str]:
        for part, domain, plain, quoted in _NAMED.findall(expression)[:32]:
            name = plain or quoted
            if (part, domain, name) not in self._known:
                yield f"the {'attribute' if part == 'attributes' else part} {domain}/{name}"

    def _satisfiable(self, entry: ApiObject, spec: ApiObject, prefix: str) -> Iterator[LintFinding]:
        """Whether a node could satisfy the claim if every device were free and untainted."""
        namespace, name = identity(entry)
        claim = {"metadata": {"namespace": namespace, "name": name}, "spec": spec}
        pod = {"metadata": {"namespace": namespace, "name": name}, "spec": {"containers": [{"name": "main"}]}}
        origin = ClaimOrigin("claim", "ResourceClaim", namespace, name, claim, exists=True)
        try:
            search = Search(self._oracle, Situation(pod, (origin,)))
        except AllocationAborted as error:
            yield _finding(entry, "error", "never-satisfied", f"{prefix}.devices", str(error))
            return
        if search.base and not any(verdict.fits for verdict in search.base.values()):
            nearest = search.base[min(search.base, key=search.nearness)]
            text = f"{sentence(nearest)}, even if every device were free and untainted"
            yield _finding(entry, "error", "never-satisfied", f"{prefix}.devices", text)


def _evaluated(expression: str, devices: Iterable[SliceDevice]) -> tuple[list[SliceDevice], list[str], bool]:
    """The matching devices, the failures, and whether the expression is invalid for every device."""
    try:
        compiled(expression)
    except SelectorError as error:
        return [], [f"does not compile: {error}"], True
    matching, failed = [], []
    for device in devices:
        try:
            if device.matches(expression):
                matching.append(device)
        except SelectorError as error:
            failed.append(f"fails on device {device_name(device.id)}: {error}")
    return matching, failed, False


def _expression(selector: ApiObject) -> str:
    return str((selector.get("cel") or {}).get("expression") or "")


def _published(devices: Iterable[SliceDevice]) -> set[tuple[str, str, str]]:
    known = set()
    for device in devices:
        for part in ("attributes", "capacity"):
            for name in device.published.get(part) or {}:
                domain, _, identifier = str(name).rpartition("/")
                known.add((part, domain or device.slice.driver, identifier))
    return known


def _open(node: ApiObject) -> Mapping[str, Any]:
    """A node without taints, with room for a pod."""
    amounts = {"pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": node["metadata"],
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready},
    }


def _untainted(published: ApiObject) -> ApiObject:
    spec = published.get("spec") or {}
    devices = [{**device, "taints": []} for device in spec.get("devices") or ()]
    return {**published, "spec": {**spec, "devices": devices}} if devices else published


def _path(parts: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _rejected(entry: ApiObject) -> Iterator[LintFinding]:
    """Fields for which an API server would reject an object that it does not have yet, except selectors."""
    if entry["metadata"].get("uid"):
        return
    is_template = entry["kind"] == "ResourceClaimTemplate"
    validate = claim_validation.validate_template if is_template else claim_validation.validate
    for error in validate(dict(entry)):
        if ".selectors" not in error.field:
            yield _finding(entry, "error", "invalid", error.field, error.message)


def _finding(entry: ApiObject, level: str, code: str, path: str, text: str) -> LintFinding:
    namespace, name = identity(entry)
    return LintFinding(level, code, str(entry["kind"]), namespace, name, path, clean(text, limit=1000))
