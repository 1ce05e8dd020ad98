"""DeviceTaintRules: taints that an administrator puts on devices, beside those that drivers publish. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from plugwright.allocator.published_slices import DeviceId

__all__ = ["rule_selects", "with_rule_taints"]

_Object = Mapping[str, Any]


def rule_selects(rule: _Object, device: DeviceId) -> bool:
    """Whether the taint of a rule is on the device. A rule without a selector selects nothing, an empty one all."""
    selector = (rule.get("spec") or {}).get("deviceSelector")
    if selector is None:
        return False
    wanted = (selector.get(name) for name in ("driver", "pool", "device"))
    return all(text is None or text == part for text, part in zip(wanted, device, strict=True))


def with_rule_taints(slice_: _Object, rules: Iterable[_Object]) -> _Object:
    """The ResourceSlice as the scheduler sees it; the same object if no rule selects one of its devices."""
    rules, spec = list(rules), slice_["spec"]
    if not rules or not spec.get("devices"):
        return slice_
    driver, pool = spec["driver"], spec["pool"]["name"]
    added = [
        [rule["spec"]["taint"] for rule in rules if rule_selects(rule, (driver, pool, device["name"]))]
        for device in spec["devices"]
    ]
    if not any(added):
        return slice_
    devices = [
        {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device
        for device, taints in zip(spec["devices"], added, strict=True)
    ]
    return {**slice_, "spec": {**spec, "devices": devices}}
