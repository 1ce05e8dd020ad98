"""The requests of claims as the allocator reads them, with their device classes.

An unsupported field is rejected with its path, because a request must not be satisfied while ignoring it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from plugwright.allocator.consumable_capacity import Amount, amount
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import unknown_field
from plugwright.errors import AllocationAborted, FeatureUnsupported, InvalidValue

__all__ = ["MAX_DEVICES", "ClaimRequests", "DeviceRequest", "RequestAlternatives", "read_claim"]

MAX_DEVICES = 32  # of one claim
MAX_REQUESTS = 32

_EXACTLY = {
    "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity",
    "derivedAttributes",
}  # fmt: skip
_SUBREQUEST = (_EXACTLY - {"adminAccess"}) | {"name"}
_KNOWN_PARTS: Mapping[str, set[str]] = {
    "selectors": {"cel"},
    "tolerations": {"key", "operator", "value", "effect", "tolerationSeconds"},
}
_Classes = Mapping[str, Mapping[str, Any]]


class DeviceRequest(Struct, frozen=True):
    """A request with `exactly`, or a subrequest."""

    name: str  # `main/sub` for a subrequest
    base: str
    device_class: Mapping[str, Any]
    class_selectors: tuple[str, ...]
    selectors: tuple[str, ...]
    takes_all: bool
    count: int
    admin_access: bool
    tolerations: Sequence[Mapping[str, Any]]
    capacity: Mapping[str, Amount]

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]


class RequestAlternatives(Struct, frozen=True):
    """A request of a claim: one `DeviceRequest`, or several of which the first that fits is used."""

    name: str
    prioritized: bool
    alternatives: tuple[DeviceRequest, ...]


class ClaimRequests(Struct, frozen=True):
    """A claim that waits for devices."""

    name: str  # with its namespace
    uid: str
    claim: Mapping[str, Any]
    requests: tuple[RequestAlternatives, ...]


def read_claim(claim: Mapping[str, Any], classes: _Classes, features: Features) -> ClaimRequests:
    """Raises `AllocationAborted` for a claim that cannot be allocated on any node."""
    metadata = claim.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name", "")
    title = f"{namespace}/{name}" if namespace else name
    spec = claim.get("spec") or {}
    _refuse_unknown(title, "spec", spec, {"devices"})
    devices = spec.get("devices") or {}
    _refuse_unknown(title, "spec.devices", devices, {"requests", "constraints", "config"})
    requests = devices.get("requests") or ()
    if len(requests) > MAX_REQUESTS:
        raise AllocationAborted(f"claim {title}: {len(requests)} requests exceed the limit of {MAX_REQUESTS}")
    _check_constraints(title, devices.get("constraints") or ())
    reader = _RequestReader(title, classes, features)
    return ClaimRequests(title, metadata.get("uid", ""), claim, tuple(map(reader.request, *_numbered(requests))))


def _numbered(requests: Sequence[Any]) -> tuple[Iterator[int], Sequence[Any]]:
    return iter(range(len(requests))), requests


def _refuse_unknown(claim: str, path: str, value: Mapping[str, Any], known: set[str]) -> None:
    field = unknown_field(value, known)
    if field:
        raise FeatureUnsupported(f"{path}.{field}", f"claim {claim}: the field {path}.{field} is not supported")


def _check_constraints(claim: str, constraints: Sequence[Mapping[str, Any]]) -> None:
    for number, constraint in enumerate(constraints):
        path = f"spec.devices.constraints[{number}]"
        _refuse_unknown(claim, path, constraint, {"requests", "matchAttribute", "distinctAttribute"})
        if constraint.get("matchAttribute") is None and constraint.get("distinctAttribute") is None:
            raise AllocationAborted(
                f"claim {claim}, constraint #{number}: empty constraint (unsupported constraint type?)"
            )


class _RequestReader:
    def __init__(self, claim: str, classes: _Classes, features: Features) -> None:
        self._claim, self._classes, self._features = claim, classes, features

    def request(self, number: int, request: Mapping[str, Any]) -> RequestAlternatives:
        path, name = f"spec.devices.requests[{number}]", request.get("name", "")
        _refuse_unknown(self._claim, path, request, {"name", "exactly", "firstAvailable"})
        subrequests = request.get("firstAvailable") or ()
        if subrequests and not self._features.prioritized_list:
            raise self._error(name, "has subrequests, but the DRAPrioritizedList feature is disabled", ": ")
        if not subrequests:
            alternatives = [self._alternative(name, name, f"{path}.exactly", request.get("exactly") or {})]
        else:
            alternatives = [
                self._alternative(f"{name}/{sub.get('name', '')}", name, f"{path}.firstAvailable[{place}]", sub)
                for place, sub in enumerate(subrequests)
            ]
        return RequestAlternatives(name, bool(subrequests), tuple(alternatives))

    def _alternative(self, name: str, base: str, path: str, spec: Mapping[str, Any]) -> DeviceRequest:
        _refuse_unknown(self._claim, path, spec, _EXACTLY if name == base else _SUBREQUEST)
        for part, known in _KNOWN_PARTS.items():
            for number, entry in enumerate(spec.get(part) or ()):
                _refuse_unknown(self._claim, f"{path}.{part}[{number}]", entry, known)
        self._check(name, base, spec)
        device_class = self._class(name, spec["deviceClassName"])
        mode = spec.get("allocationMode") or "ExactCount"
        if mode not in ("ExactCount", "All"):
            raise self._error(name, f"unsupported count mode {mode}")
        return DeviceRequest(
            name=name,
            base=base,
            device_class=device_class,
            class_selectors=tuple(_expressions((device_class.get("spec") or {}).get("selectors"))),
            selectors=tuple(_expressions(spec.get("selectors"))),
            takes_all=mode == "All",
            count=int(spec.get("count", 1)),
            admin_access=bool(spec.get("adminAccess")),
            tolerations=spec.get("tolerations") or (),
            capacity=self._capacity(name, path, spec.get("capacity")),
        )

    def _check(self, name: str, base: str, spec: Mapping[str, Any]) -> None:
        if spec.get("capacity") is not None and not self._features.consumable_capacity:
            subrequest = "subrequest" if name != base else "request"
            text = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
            raise AllocationAborted(f"claim {self._claim}, {subrequest} {name.rpartition('/')[2]}: {text}")
        if spec.get("derivedAttributes"):
            text = f"claim {self._claim}, request {name}: derivedAttributes are not supported"
            raise FeatureUnsupported("DRADerivedAttributes", text)
        for number, selector in enumerate(spec.get("selectors") or ()):
            if not (selector.get("cel") or {}).get("expression"):
                raise self._error(name, f"selector #{number}: CEL expression empty (unsupported selector type?)", ", ")
        if spec.get("adminAccess") is not None and not self._features.admin_access:
            raise self._error(name, "admin access is requested, but the feature is disabled")
        if not spec.get("deviceClassName"):
            raise self._error(name, "missing device class name (unsupported request type?)")

    def _class(self, name: str, class_name: str) -> Mapping[str, Any]:
        device_class = self._classes.get(class_name)
        if device_class is None:
            missing = f'deviceclass.resource.k8s.io "{class_name}" not found'
            raise self._error(name, f"could not retrieve device class {class_name}: {missing}")
        spec = device_class.get("spec") or {}
        field = unknown_field(spec, {"selectors", "config", "extendedResourceName"})
        if field:
            text = f"class {class_name}: the field spec.{field} is not supported"
            raise FeatureUnsupported(f"spec.{field}", text)
        for number, selector in enumerate(spec.get("selectors") or ()):
            if not (selector.get("cel") or {}).get("expression"):
                raise AllocationAborted(f"class {class_name}: selector #{number}: CEL expression empty")
        return device_class

    def _capacity(self, name: str, path: str, capacity: Mapping[str, Any] | None) -> Mapping[str, Amount]:
        _refuse_unknown(self._claim, f"{path}.capacity", capacity or {}, {"requests"})
        try:
            return {key: amount(str(text)) for key, text in ((capacity or {}).get("requests") or {}).items()}
        except InvalidValue as error:
            raise self._error(name, f"capacity: {error}") from None

    def _error(self, name: str, problem: str, between: str = ": ") -> AllocationAborted:
        return AllocationAborted(f"claim {self._claim}, request {name.rpartition('/')[2]}{between}{problem}")


def _expressions(selectors: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    for selector in selectors or ():
        yield selector["cel"]["expression"]
