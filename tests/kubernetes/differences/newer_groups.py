"""Requests for what is particular to events.k8s.io and scheduling.k8s.io."""

from collections.abc import Iterator
from typing import Any

from tests.kubernetes.differences.every_kind import NAMESPACE
from tests.kubernetes.differences.playing import Json, Played

__all__ = ["newer_groups"]

_EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_MERGE = "application/merge-patch+json"


def newer_groups() -> Iterator[Played]:
    yield from _created_events()
    yield from _changed_events()
    yield from _priority_classes()
    yield from _pods_with_priorities()


def _event(name: str, **members: Any) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "namespace": NAMESPACE, "name": "plain"},
        "reportingController": "example.com/a",
        "reportingInstance": "b",
        "action": "c",
        "reason": "d",
        "note": "e",
        "type": "Normal",
        **members,
    }


def _created_events() -> Iterator[Played]:
    events: dict[str, Json] = {
        "plain": {},
        "warning": {"type": "Warning", "related": {"kind": "Node", "name": "n"}},
        "without a time": {"eventTime": None},
        "of an unknown type": {"type": "Odd"},
        "without an action": {"action": ""},
        "without a reason": {"reason": ""},
        "without a reporter": {"reportingController": ""},
        "with a bad reporter": {"reportingController": "a b"},
        "without an instance": {"reportingInstance": ""},
        "with a count": {"deprecatedCount": 2},
        "with a source": {"deprecatedSource": {"component": "x"}},
        "with a first time": {"deprecatedFirstTimestamp": "2026-01-01T00:00:00Z"},
        "with a series of one": {"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}},
        "with a series without a time": {"series": {"count": 2}},
        "with a long note": {"note": "x" * 1025},
        "with a message": {"message": "of the other group"},
        "of the other group": {"apiVersion": "v1"},
        "of no namespace": {"regarding": {"kind": "Node", "name": "n"}},
    }
    for number, (name, members) in enumerate(events.items()):
        yield Played(f"newer event: {name}", "POST", _EVENTS, _event(f"newer-{number}", **members))


def _changed_events() -> Iterator[Played]:
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    for name, path, change in (
        ("series", _EVENTS, {"series": series}),
        ("series of one", _EVENTS, {"series": {"count": 1}}),
        ("note", _EVENTS, {"note": "other"}),
        ("reason", _EVENTS, {"reason": "other"}),
        ("message by the core group", f"{_CORE}/events", {"message": "other"}),
    ):
        yield Played(f"newer event: change its {name}", "PATCH", f"{path}/newer-0", change, _MERGE)
    yield Played("newer event: get by the core group", "GET", f"{_CORE}/events/newer-1")
    yield Played("newer event: get of one of the core group", "GET", f"{_EVENTS}/event-0")
    yield Played("newer event: get of nothing", "GET", f"{_EVENTS}/nothing")
    yield Played("newer event: list by what it regards", "GET", f"{_EVENTS}?fieldSelector=regarding.name%3Dnobody")
    yield Played("newer event: list by a field of the other group", "GET", f"{_EVENTS}?fieldSelector=source%3Dx")
    yield Played("newer event: delete", "DELETE", f"{_EVENTS}/newer-1")


def _priority_class(name: str, **members: Any) -> Json:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, **members}


def _priority_classes() -> Iterator[Played]:
    for name, content in {
        "never preempts": _priority_class("never", value=5, preemptionPolicy="Never", description="d"),
        "without a value": _priority_class("zero"),
        "negative": _priority_class("low", value=-5),
        "too high": _priority_class("highest", value=1_000_000_001),
        "too high for its type": _priority_class("higher", value=3_000_000_000),
        "of the system": _priority_class("system-mine", value=5),
        "of the system with another value": _priority_class("system-node-critical", value=5),
        "with an unknown policy": _priority_class("policy", value=5, preemptionPolicy="Maybe"),
        "with an empty policy": _priority_class("empty", value=5, preemptionPolicy=""),
        "default": _priority_class("usual", value=6, globalDefault=True),
        "second default": _priority_class("second", value=7, globalDefault=True),
    }.items():
        yield Played(f"priority class: {name}", "POST", _CLASSES, content)
    for name, change in {
        "value": {"value": 9},
        "policy": {"preemptionPolicy": "PreemptLowerPriority"},
        "description": {"description": "other"},
    }.items():
        yield Played(f"priority class: change its {name}", "PATCH", f"{_CLASSES}/never", change, _MERGE)
    yield Played("priority class: delete one of the system", "DELETE", f"{_CLASSES}/system-node-critical")
    yield Played("priority class: get one of the system", "GET", f"{_CLASSES}/system-cluster-critical")


def _pods_with_priorities() -> Iterator[Played]:
    containers = [{"name": "main", "image": "busybox"}]
    specs: dict[str, Json] = {
        "of a class": {"priorityClassName": "never"},
        "of a class, with its value": {"priorityClassName": "never", "priority": 5},
        "of a class, with another value": {"priorityClassName": "never", "priority": 6},
        "of a class, with another policy": {
            "priorityClassName": "never",
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "of the default class": {},
        "of the default class, with its value": {"priority": 6},
    }
    for number, (name, spec) in enumerate(specs.items()):
        pod = {"metadata": {"name": f"priority-{number}"}, "spec": {"containers": containers, **spec}}
        yield Played(f"pod: priority {name}", "POST", f"{_CORE}/pods", pod)
    yield Played("priority class: delete the default", "DELETE", f"{_CLASSES}/usual")
