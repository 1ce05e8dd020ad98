"""A cure in an answer: its text and its steps, for people and programs."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from plugwright.explain.counterfactual import REMOVED, Relaxation, Situation
from plugwright.explain.search import Cure
from plugwright.explain.world import identity

__all__ = ["CureReport", "CureStep", "cure_report"]


class CureStep(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One step of a cure. `edit` sets `path` of the object to `value`, or removes it without a value."""

    verb: str  # edit, delete, recover
    kind: str = ""
    namespace: str = ""
    name: str = ""
    path: tuple[str | int, ...] = ()
    value: Any = None
    removes: bool = False


class CureReport(Struct, frozen=True, rename="camel"):
    """`kinds` name the relaxations; `nodes` are those on which the engine confirmed the cure."""

    text: str
    kinds: tuple[str, ...]
    nodes: tuple[str, ...]
    matching_nodes: int
    changes: tuple[CureStep, ...]
    commands: tuple[str, ...]


def cure_report(situation: Situation, relaxations: Sequence[Relaxation], cure: Cure | None) -> CureReport:
    text = "runs " + " and ".join(entry.text for entry in relaxations)
    if cure is not None and not any(entry.nodes for entry in relaxations):
        first = cure.nodes[0] if cure.like == 1 else f"{cure.nodes[0]} and {cure.like - 1} more"
        text += f" (on {first})"
    changes = tuple(change for entry in relaxations for change in _changes(situation, entry))
    commands = tuple(command for entry in relaxations for command in entry.commands)
    nodes: tuple[str, ...] = cure.nodes[:3] if cure else ()
    like = cure.like if cure else 0
    return CureReport(text, tuple(entry.kind for entry in relaxations), nodes, like, changes, commands)


def _changes(situation: Situation, relaxation: Relaxation) -> Iterable[CureStep]:
    yield from _edits(situation, relaxation)
    yield from _ends(situation, relaxation)
    for device_class in relaxation.classes:
        yield CureStep("edit", "DeviceClass", "", identity(device_class)[1], ("spec",), device_class["spec"])
    if relaxation.kind == "taint-rule":
        yield CureStep("delete", "DeviceTaintRule", "", relaxation.subject)
        return
    for published in relaxation.slices:
        yield CureStep("recover", "ResourceSlice", "", identity(published)[1], ("spec",), published["spec"])
    for node in relaxation.changed_nodes:
        value = {"spec": node.get("spec") or {}, "status": node.get("status") or {}}
        yield CureStep("recover", "Node", "", identity(node)[1], (), value)
    for name, policy in relaxation.policies:
        yield CureStep("recover", "Node", "", name, ("kubelet", "topologyManagerPolicy"), policy)


def _edits(situation: Situation, relaxation: Relaxation) -> Iterable[CureStep]:
    for edit in relaxation.edits:
        removes = isinstance(edit.value, str) and edit.value == REMOVED
        value = None if removes else edit.value
        if edit.claim is None:
            namespace, name = identity(situation.pod)
            yield CureStep("edit", "Pod", namespace, name, edit.path, value, removes)
        elif relaxation.kind != "reference":
            source = situation.sources[edit.claim]
            path = (*source.prefix, *edit.path[1:])
            yield CureStep("edit", source.kind, source.namespace, source.name, path, value, removes)


def _ends(situation: Situation, relaxation: Relaxation) -> Iterable[CureStep]:
    for namespace, name in sorted(relaxation.ended):
        yield CureStep("delete", "Pod", namespace, name)
    if relaxation.kind == "unused-claim":
        for namespace, name in sorted(relaxation.freed):
            yield CureStep("delete", "ResourceClaim", namespace, name)
    for quota, key, value in sorted(relaxation.quotas):
        yield CureStep("edit", "ResourceQuota", identity(situation.pod)[0], quota, ("spec", "hard", key), value)
