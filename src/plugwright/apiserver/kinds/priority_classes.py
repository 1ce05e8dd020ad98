"""PriorityClasses: the two of every cluster, the rules for others, and the class of a pod.

A pod's priority is computed when it is created, and does not change when its class is changed or deleted.
"""

from collections.abc import Iterator

from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object, ObjectKey, ObjectLookup
from plugwright.apiserver.validation import FieldError, forbidden, invalid, required, unsupported

__all__ = ["PRIORITY_CLASSES", "SYSTEM_PRIORITY_CLASSES", "admit_priority"]

_PREEMPT = "PreemptLowerPriority"
_PREEMPTION_POLICIES = (_PREEMPT, "Never")
_HIGHEST_OF_USERS = 1_000_000_000
_SYSTEM_PREFIX = "system-"
_COMPUTED = "priority admission controller computed"
_NO_CLASS: Object = {"metadata": {"name": ""}, "value": 0, "preemptionPolicy": _PREEMPT}
_SYSTEM_VALUES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_SYSTEM_DESCRIPTIONS = {
    "system-cluster-critical": (
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."
    ),
    "system-node-critical": "Used for system critical pods that must not be moved from their current node.",
}
SYSTEM_PRIORITY_CLASSES: tuple[Object, ...] = tuple(
    {"metadata": {"name": name}, "value": value, "description": _SYSTEM_DESCRIPTIONS[name]}
    for name, value in _SYSTEM_VALUES.items()
)


def admit_priority(pod: Object, objects: ObjectLookup) -> str | None:
    """Fills in the priority of the pod's class or the default class; returns why the pod is rejected, or None."""
    spec, name = pod["spec"], str(pod["spec"].get("priorityClassName") or "")
    found = _class(name, objects) if name else _default_class(objects)
    if found is None:
        return f"no PriorityClass with name {name} was found"
    value, policy = found.get("value", 0), found["preemptionPolicy"]
    if spec.get("priority", value) != value:
        rule = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
        return f"{rule}; {_COMPUTED} {value} from the given PriorityClass name"
    if spec.get("preemptionPolicy", policy) != policy:
        rule = f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec"
        return f"{rule}; {_COMPUTED} {policy} from the given PriorityClass name"
    class_name = found["metadata"]["name"]
    spec |= {"priority": value, "preemptionPolicy": policy, **({"priorityClassName": class_name} if class_name else {})}
    return None


def _class(name: str, objects: ObjectLookup) -> Object | None:
    if name in _SYSTEM_VALUES:  # can be neither changed nor deleted
        return {"metadata": {"name": name}, "value": _SYSTEM_VALUES[name], "preemptionPolicy": _PREEMPT}
    return objects.get(ObjectKey(PRIORITY_CLASSES.qualified, "", name))


def _default_class(objects: ObjectLookup) -> Object:
    """The default class, the lowest one if there are several."""
    classes = objects.objects(PRIORITY_CLASSES.qualified)
    defaults = [one for one in classes if one.get("globalDefault")]
    return min(defaults, key=lambda one: int(one.get("value", 0)), default=_NO_CLASS)


def _admit(priority_class: Object, objects: ObjectLookup) -> str | None:
    default = _default_class(objects)["metadata"]["name"]
    if not priority_class.get("globalDefault") or not default:
        return None
    return f"PriorityClass {default} is already marked as default. Only one default can exist"


def _prepare_for_create(priority_class: Object) -> Object:
    priority_class["metadata"]["generation"] = 1
    return _with_defaults(priority_class)


def _with_defaults(priority_class: Object) -> Object:
    return {"preemptionPolicy": _PREEMPT, "value": 0, **priority_class}


def _validate_create(priority_class: Object) -> Iterator[FieldError]:
    name, value = str(priority_class["metadata"].get("name") or ""), int(priority_class["value"])
    if name.startswith(_SYSTEM_PREFIX):
        if problem := _system_problem(name, value, bool(priority_class.get("globalDefault"))):
            rule = f"priority class names with '{_SYSTEM_PREFIX}' prefix are reserved for system use only"
            yield forbidden("metadata.name", f"{rule}. error: {problem}")
    elif value > _HIGHEST_OF_USERS:
        yield forbidden("value", f"maximum allowed value of a user defined priority is {_HIGHEST_OF_USERS}")
    if not priority_class["preemptionPolicy"]:
        yield required("preemptionPolicy")
    else:
        yield from unsupported("preemptionPolicy", priority_class["preemptionPolicy"], _PREEMPTION_POLICIES)


def _system_problem(name: str, value: int, is_default: bool) -> str:
    if name not in _SYSTEM_VALUES:
        return f"{name} is not a known system priority class"
    if value != _SYSTEM_VALUES[name]:
        return f"value of {name} PriorityClass must be {_SYSTEM_VALUES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def _validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before.get("value", 0) != after["value"]:
        yield forbidden("value", "may not be changed in an update.")
    if before["preemptionPolicy"] != after["preemptionPolicy"]:
        yield invalid("preemptionPolicy", after["preemptionPolicy"], "field is immutable")


PRIORITY_CLASSES = Kind(
    plural="priorityclasses",
    name="PriorityClass",
    group="scheduling.k8s.io",
    short_names=("pc",),
    namespaced=False,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=lambda _before, after: _with_defaults(after),
    admit=_admit,
    validate_create=_validate_create,
    validate_update=_validate_update,
    protected_names=frozenset(_SYSTEM_VALUES),
    protection="this is a system priority class and cannot be deleted",
    columns=(
        NAME,
        Column("Value", lambda one, _: one.get("value", 0)),
        Column("Global-Default", lambda one, _: bool(one.get("globalDefault"))),
        AGE,
        Column("PreemptionPolicy", lambda one, _: one.get("preemptionPolicy", "")),
    ),
)
