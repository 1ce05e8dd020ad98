"""The constraints of a claim: attributes that its devices must share, or must not."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from plugwright.allocator.device_requests import DeviceRequest
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import SliceDevice

__all__ = ["Constraint", "constraints_of"]

_Attribute = Mapping[str, Any]
_KINDS = ("string", "int", "bool", "version")


class Constraint(Protocol):
    """Follows the devices that a claim gets. `remove` takes back the last `add` that was true."""

    text: str

    def add(self, request: DeviceRequest, device: SliceDevice) -> bool: ...

    def remove(self, request: DeviceRequest) -> None: ...


def constraints_of(claim: Mapping[str, Any], features: Features) -> list[Constraint]:
    """New constraints without devices, in the order of the claim."""
    listed = ((claim.get("spec") or {}).get("devices") or {}).get("constraints") or ()
    return [_constraint(constraint, features) for constraint in listed]


def _constraint(constraint: Mapping[str, Any], features: Features) -> Constraint:
    requests = frozenset(constraint.get("requests") or ())
    matched = constraint.get("matchAttribute")
    if matched is not None:
        return _MatchAttribute(matched, requests)
    distinct = _DistinctFromLast if features.distinct_from_last else _DistinctAttribute
    return distinct(constraint["distinctAttribute"], requests)


class _AttributeConstraint:
    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self._attribute, self._requests = attribute, requests

    def _concerns(self, request: DeviceRequest) -> bool:
        return not self._requests or request.name in self._requests or request.base in self._requests


class _MatchAttribute(_AttributeConstraint):
    """Every device has the value of the first."""

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.text = f"matchAttribute {attribute}"
        self._values: list[_Attribute] = []

    def add(self, request: DeviceRequest, device: SliceDevice) -> bool:
        if not self._concerns(request):
            return True
        value = device.attribute(self._attribute)
        if value is None or (self._values and not _equal(value, self._values[0])):
            return False
        self._values.append(value)
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._concerns(request):
            self._values.pop()


class _DistinctAttribute(_AttributeConstraint):
    """No two devices have the same value."""

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.text = f"distinctAttribute {attribute}"
        self._values: list[_Attribute] = []

    def add(self, request: DeviceRequest, device: SliceDevice) -> bool:
        if not self._concerns(request):
            return True
        value = device.attribute(self._attribute)
        if value is None or not _differs(value, self._values):
            return False
        self._values.append(value)
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._concerns(request):
            self._values.pop()


class _DistinctFromLast(_AttributeConstraint):
    """As 1.36 compares: with the last device of each request, so that devices of one request may share a value."""

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.text = f"distinctAttribute {attribute}"
        self._last: dict[str, _Attribute] = {}
        self._devices = 0

    def add(self, request: DeviceRequest, device: SliceDevice) -> bool:
        if not self._concerns(request):
            return True
        value = device.attribute(self._attribute)
        if value is None or (self._devices and not _differs(value, list(self._last.values()))):
            return False
        self._last[request.base] = value
        self._devices += 1
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._concerns(request):
            self._last.pop(request.base, None)
            self._devices -= 1


def _kind(attribute: _Attribute) -> str:
    return next((kind for kind in _KINDS if attribute.get(kind) is not None), "")


def _equal(value: _Attribute, first: _Attribute) -> bool:
    kind = _kind(value)
    return bool(kind) and first.get(kind) == value[kind]


def _differs(value: _Attribute, others: Sequence[_Attribute]) -> bool:
    kind = _kind(value)
    return all(kind and other.get(kind) != value[kind] for other in others)
