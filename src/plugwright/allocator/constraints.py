"""The constraints of a claim: attributes that its devices must share, or must not."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from plugwright.allocator.device_requests import DeviceRequest
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import SliceDevice

__all__ = ["Constraint", "constraints_of"]

_Attribute = Mapping[str, Any]
_KINDS = ("string", "int", "bool", "version")


def constraints_of(claim: Mapping[str, Any], features: Features) -> "list[Constraint]":
    """New constraints without devices, in the order of the claim."""
    listed = ((claim.get("spec") or {}).get("devices") or {}).get("constraints") or ()
    return [_constraint(constraint, features) for constraint in listed]


def _constraint(constraint: Mapping[str, Any], features: Features) -> "Constraint":
    requests = frozenset(constraint.get("requests") or ())
    matched = constraint.get("matchAttribute")
    if matched is not None:
        return _MatchAttribute(matched, requests)
    distinct = _DistinctFromLast if features.distinct_from_last else _DistinctAttribute
    return distinct(constraint["distinctAttribute"], requests)


class Constraint(ABC):
    """Follows the devices that a claim gets. `remove` takes back the last `add` that was true."""

    field: str  # of the claim

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self.text = f"{self.field} {attribute}"
        self._attribute, self._requests = attribute, requests
        self._values: list[_Attribute] = []

    def add(self, request: DeviceRequest, device: SliceDevice) -> bool:
        if not self._concerns(request):
            return True
        value = device.attribute(self._attribute)
        if value is None or not self._allows(value):
            return False
        self._keep(request, value)
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._concerns(request):
            self._drop(request)

    def _concerns(self, request: DeviceRequest) -> bool:
        return not self._requests or request.name in self._requests or request.base in self._requests

    @abstractmethod
    def _allows(self, value: _Attribute) -> bool:
        """Whether a device with the value can join the others."""

    def _keep(self, _request: DeviceRequest, value: _Attribute) -> None:
        self._values.append(value)

    def _drop(self, _request: DeviceRequest) -> None:
        self._values.pop()


class _MatchAttribute(Constraint):
    """Every device has the value of the first."""

    field = "matchAttribute"

    def _allows(self, value: _Attribute) -> bool:
        kind = _kind(value)
        return not self._values or (bool(kind) and self._values[0].get(kind) == value[kind])


class _DistinctAttribute(Constraint):
    """No two devices have the same value."""

    field = "distinctAttribute"

    def _allows(self, value: _Attribute) -> bool:
        return _differs(value, self._values)


class _DistinctFromLast(_DistinctAttribute):
    """Compares as 1.36 does: with the last device of each request, so that devices of one request can share a value."""

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self._last: dict[str, _Attribute] = {}

    def _allows(self, value: _Attribute) -> bool:
        return _differs(value, self._last.values())

    def _keep(self, request: DeviceRequest, value: _Attribute) -> None:
        self._last[request.base] = value

    def _drop(self, request: DeviceRequest) -> None:
        # 1.36 forgets the request, even if it has further devices.
        self._last.pop(request.base, None)


def _kind(attribute: _Attribute) -> str:
    return next((kind for kind in _KINDS if attribute.get(kind) is not None), "")


def _differs(value: _Attribute, others: Iterable[_Attribute]) -> bool:
    kind = _kind(value)
    return all(kind and other.get(kind) != value[kind] for other in others)
