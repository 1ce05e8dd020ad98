"""The file of `plugwright join`: groups of emulated nodes, their shape, labels, taints, kubelet and resources.

As strict as the operator's file: an unknown key is an error with its line. The resources of a group are written as in
that file, and checked by `schema`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plugwright import quantity
from plugwright.apiserver import validation
from plugwright.cluster.embedded import mock_gpus
from plugwright.cluster.joined.joined_nodes import NodePlan, NodePlans
from plugwright.cluster.joined.node_registration import TAINT
from plugwright.cluster.nodes.node_status import NodeShape
from plugwright.config import schema
from plugwright.config.document import Document, parse
from plugwright.config.schema import Config, ConfigFile
from plugwright.errors import ConfigError
from plugwright.kubelet import KubeletSettings
from plugwright.kubelet.topology_manager import TopologyPolicy, TopologyScope
from plugwright.kubelet.versions import DEFAULT_VERSION, LEGACY, SUPPORTED_VERSIONS
from plugwright.sdk.device_family import FamilySettings
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["load_nodes", "plans_of", "read_nodes"]

_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = "plugwright"  # of the nodes' names without a file
_RESERVED = ("kubernetes.io/hostname", "plugwright.dev/joined-by")

_Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class TaintEntry(FamilySettings, frozen=True):
    key: str
    effect: TaintEffect
    value: str = ""


class KubeletEntry(FamilySettings, frozen=True):
    """Without a version, that of the API server."""

    version: str = ""
    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: TopologyScope = TopologyScope.CONTAINER


class NodeGroup(FamilySettings, frozen=True):
    """Nodes that are alike: `name`-1 to `name`-N."""

    name: str
    count: _Count = 1
    cpu: str | int = "16"
    memory: str | int = "64Gi"
    storage: str | int = "100Gi"
    pods: Annotated[int, msgspec.Meta(ge=1, le=120)] = 110
    numa: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: list[TaintEntry] = msgspec.field(default_factory=list)
    kubelet: KubeletEntry = KubeletEntry()
    resources: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _Groups(FamilySettings, frozen=True):
    nodes: Annotated[list[NodeGroup], msgspec.Meta(min_length=1)]


def plans_of(file: Path | None, count: int | None, *, taint: bool) -> NodePlans:
    """Those of the file; without one, nodes that have ten mock GPUs each."""
    if file is not None:
        nodes = load_nodes(file)
    else:
        plan = NodePlan(name="", kubelet=KubeletSettings(numa=2), plugins=mock_gpus)
        plans = tuple(replace(plan, name=f"{_PREFIX}-{number + 1}") for number in range(count or 1))
        nodes = NodePlans(plans, serves_claims=False)
    if not taint:
        return nodes
    return NodePlans(tuple(map(_tainted, nodes.plans)), nodes.serves_claims)


def _tainted(plan: NodePlan) -> NodePlan:
    return replace(plan, shape=replace(plan.shape, taints=(TAINT, *plan.shape.taints)))


def load_nodes(path: Path) -> NodePlans:
    try:
        text = schema.read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    return read_nodes(path.name, text)


def read_nodes(name: str, text: str) -> NodePlans:
    document = parse(name, text)
    groups = document.convert(_Groups).nodes
    plans: list[NodePlan] = []
    serves_claims = False
    for index, group in enumerate(groups):
        path = f"$.nodes[{index}]"
        _check_group(document, path, group)
        file = schema.resources_at(document, f"{path}.resources", group.resources)
        for number, entry in enumerate(file.resources):
            if entry.is_template:
                problem = "a name with {…} stands for names of this machine's devices, which emulated nodes do not have"
                raise document.error(f"{path}.resources[{number}].name", problem)
        serves_claims |= any(entry.serve.api is not ServeMode.DEVICE_PLUGIN for entry in file.resources)
        plans += _plans(document, path, group, file)
        _check_unique(document, path, groups[: index + 1])
    return NodePlans(tuple(plans), serves_claims)


def _plans(document: Document, path: str, group: NodeGroup, file: ConfigFile) -> Iterator[NodePlan]:
    shape = NodeShape(
        cpu=quantity.canonical(group.cpu),
        memory=quantity.canonical(group.memory),
        storage=quantity.canonical(group.storage),
        pods=group.pods,
        labels=group.labels,
        taints=tuple(
            {"key": taint.key, "effect": taint.effect.value} | ({"value": taint.value} if taint.value else {})
            for taint in group.taints
        ),
    )
    kubelet = _kubelet(document, path, group)
    plan = NodePlan(
        name="", shape=shape, kubelet=kubelet, version=group.kubelet.version, plugins=_maker(document, file)
    )
    for number in range(group.count):
        yield replace(plan, name=f"{group.name}-{number + 1}")


def _kubelet(document: Document, path: str, group: NodeGroup) -> KubeletSettings:
    settings = group.kubelet
    version = settings.version or DEFAULT_VERSION
    try:
        if version == LEGACY:
            raise ConfigError(f"kubelet version must be {SUPPORTED_VERSIONS}, got {version}")
        return KubeletSettings(version, group.numa, settings.policy, settings.scope)
    except ConfigError as error:
        raise document.error(f"{path}.kubelet", str(error)) from error


def _maker(document: Document, file: ConfigFile) -> Callable[[str], list[Plugin]]:
    """Each node has plugins of its own."""
    config = Config(document, file)
    return lambda _: config.plugins()


def _check_group(document: Document, path: str, group: NodeGroup) -> None:
    for error in validation.dns_subdomain_errors(f"{group.name}-{group.count}"):
        raise document.error(f"{path}.name", f"{error}, got {group.name!r}")
    for name in ("cpu", "memory", "storage"):
        amount = getattr(group, name)
        if not quantity.is_quantity(str(amount)) or quantity.parse(str(amount)) <= 0:
            raise document.error(f"{path}.{name}", f"must be a quantity such as 16 or 64Gi, got {amount!r}")
    for key, value in group.labels.items():
        problem = next(iter([*_key_problems(key), *validation.label_value_errors(value)]), "")
        if problem or key in _RESERVED:
            raise document.error(f"{path}.labels", f"{key}: {problem or 'is set by plugwright itself'}", key)
    for index, taint in enumerate(group.taints):
        for problem in (*_key_problems(taint.key), *validation.label_value_errors(taint.value)):
            raise document.error(f"{path}.taints[{index}]", f"{taint.key}: {problem}")


def _key_problems(key: str) -> Iterator[str]:
    if not _KEY.fullmatch(key):
        yield "must be a name such as pool or example.com/pool"


def _check_unique(document: Document, path: str, groups: Sequence[NodeGroup]) -> None:
    for other, earlier in enumerate(groups[:-1]):
        if earlier.name == groups[-1].name:
            line = document.line(f"$.nodes[{other}].name")
            raise document.error(f"{path}.name", f"{earlier.name} is a group already in line {line}")
