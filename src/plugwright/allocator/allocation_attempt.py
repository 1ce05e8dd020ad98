"""The devices that an attempt has given to claims so far: whether one more is allowed, and how to take it back."""

from collections.abc import Mapping, Set
from decimal import Decimal
from typing import Any

from plugwright.allocator.allocated_state import AllocatedState
from plugwright.allocator.constraints import Constraint, constraints_of
from plugwright.allocator.consumable_capacity import Amount, consumption, shortage
from plugwright.allocator.device_requests import ClaimRequests, DeviceRequest
from plugwright.allocator.features import BINDING_CONDITIONS, Features
from plugwright.allocator.published_slices import DeviceId, SliceDevice, device_name
from plugwright.allocator.reasons import ReasonKind
from plugwright.allocator.shared_counters import SharedCounters
from plugwright.allocator.slice_pools import SlicePool
from plugwright.errors import AllocationAborted, FeatureUnsupported, InvalidValue

__all__ = ["AllocationAttempt", "ChosenDevice", "DeviceRejection"]

DeviceRejection = tuple[ReasonKind, str]  # with its details


class ChosenDevice:
    """A device for a request, with the changes to undo on backtracking."""

    __slots__ = ("claim", "constraints", "consumed", "counted", "device", "request", "shared")

    def __init__(self, claim: int, request: DeviceRequest, device: SliceDevice) -> None:
        self.claim, self.request, self.device = claim, request, device
        self.constraints = 0  # that have added it
        self.counted = False  # its counters are reserved
        self.shared = False
        self.consumed: Mapping[str, Amount] = {}


class AllocationAttempt:
    """All devices chosen for the claims of one pod on one node."""

    def __init__(
        self, claims: tuple[ClaimRequests, ...], pools: list[SlicePool], state: AllocatedState, features: Features
    ) -> None:
        self._claims, self._state, self._features = claims, state, features
        self._pools = {(pool.driver, pool.name): pool for pool in pools}
        self._counters: dict[tuple[str, str], SharedCounters] = {}
        self._constraints = [constraints_of(claim.claim, features) for claim in claims]
        self._users: dict[DeviceId, set[int]] = {}  # claims, by exclusive device
        self._shares: dict[DeviceId, list[Mapping[str, Amount]]] = {}
        self._shared_amounts: dict[DeviceId, dict[str, Decimal]] = {}
        self.chosen: list[list[ChosenDevice]] = [[] for _ in claims]

    def in_use(self, claim: int, request: DeviceRequest, device: SliceDevice) -> DeviceRejection | None:
        """Admin access can get a device that is in use, but each device only once per claim."""
        if request.admin_access:
            return ("UsedByOtherRequest", "") if claim in self._users.get(device.id, ()) else None
        if device.id in self._state.devices:
            return "AlreadyAllocated", ""
        return ("UsedByOtherRequest", "") if self._users.get(device.id) else None

    def lacks_capacity(self, claim: int, request: DeviceRequest, device: SliceDevice) -> DeviceRejection | None:
        used = self._state.capacity.get(device.id), self._shared_amounts.get(device.id)
        return self._shortage(claim, request, device, used)

    def lacks_capacity_alone(self, claim: int, request: DeviceRequest, device: SliceDevice) -> DeviceRejection | None:
        """Excluding the consumption of other claims."""
        return self._shortage(claim, request, device, ())

    def _shortage(
        self, claim: int, request: DeviceRequest, device: SliceDevice, used: tuple[Mapping[str, Decimal] | None, ...]
    ) -> DeviceRejection | None:
        if not self._features.consumable_capacity or not (request.capacity or "capacity" in device.published):
            return None
        try:
            problem = shortage(request.capacity, device.capacity, used, self._features)
        except InvalidValue as error:
            if self._features.skips_invalid_capacity:
                return "InsufficientCapacity", str(error)
            where = f"claim {self._claims[claim].name}, request {request.short_name}"
            text = f"{where}: checking capacity for device {device_name(device.id)}: {error}"
            raise AllocationAborted(text) from None
        return ("InsufficientCapacity", problem) if problem else None

    def choose(self, claim: int, request: DeviceRequest, device: SliceDevice) -> DeviceRejection | ChosenDevice:
        """Gives the device to the request unless it is in use, exhausted, tainted, or against a constraint."""
        shared = self._features.consumable_capacity and device.allows_multiple
        if not (shared and request.admin_access):
            rejection = self.in_use(claim, request, device)
            if rejection:
                return rejection
        if device.slice.skips_node_operations:
            return "FeatureDisabled", "DRAOptionalNodeOperations is disabled"
        choice = ChosenDevice(claim, request, device)
        choice.shared = shared
        rejection = self._reserve(choice)
        if rejection:
            self._undo(choice)
            return rejection
        self._refuse_unsupported(claim, device)
        if shared:
            self._share(choice)
        else:
            self._users.setdefault(device.id, set()).add(claim)
        self.chosen[claim].append(choice)
        return choice

    @property
    def allocated_devices(self) -> Set[DeviceId]:
        """Devices that other claims have."""
        return self._state.devices

    def is_tainted(self, request: DeviceRequest, device: SliceDevice) -> Mapping[str, Any] | None:
        """The taint that the request does not tolerate."""
        if not device.taints or not self._features.device_taints:
            return None
        return next((taint for taint in device.taints if not _tolerated(taint, request)), None)

    def take_back(self, choice: ChosenDevice) -> None:
        """Undoes the last choice of the claim."""
        self.chosen[choice.claim].pop()
        device = choice.device.id
        if choice.shared:
            self._shares[device].pop()
            for name, consumed in choice.consumed.items():
                self._shared_amounts[device][name] -= consumed.value
        else:
            self._users[device].discard(choice.claim)
        self._undo(choice)

    def refuse_violation(
        self, rejection: DeviceRejection, claim: int, request: DeviceRequest, device: SliceDevice
    ) -> None:
        """Upstream treats a constraint that excludes one of all devices as an error of the claim."""
        if rejection[0] == "ConstraintViolated":
            where = f"claim {self._claims[claim].name}, request {request.short_name}"
            text = f"cannot add device {device_name(device.id)} because a claim constraint would not be satisfied"
            raise AllocationAborted(f"{where}: {text}")

    def _reserve(self, choice: ChosenDevice) -> DeviceRejection | None:
        device, request = choice.device, choice.request
        if device.counters:
            if not self._features.partitionable_devices:
                return "FeatureDisabled", "DRAPartitionableDevices is disabled"
            if not (choice.shared and self._is_shared(device.id)):
                exhausted = self._counters_of(device).reserve(device)
                if exhausted:
                    return "CounterExhausted", exhausted
                choice.counted = True
        taint = self.is_tainted(request, device)
        if taint:
            return "Tainted", f"{taint.get('key')}={taint.get('value') or ''}:{taint.get('effect')}"
        for constraint in self._constraints[choice.claim]:
            if not constraint.add(request, device):
                return "ConstraintViolated", constraint.text
            choice.constraints += 1
        return self.lacks_capacity(choice.claim, request, device)

    def _refuse_unsupported(self, claim: int, device: SliceDevice) -> None:
        name = self._claims[claim].name
        if device.has_binding_conditions:
            text = f"claim {name}: device {device_name(device.id)} has bindingConditions, which are not supported"
            raise FeatureUnsupported(BINDING_CONDITIONS, text)
        if device.unknown:
            text = f"claim {name}: device {device_name(device.id)} has the unsupported field {device.unknown}"
            raise FeatureUnsupported(device.unknown, text)

    def _share(self, choice: ChosenDevice) -> None:
        device = choice.device
        choice.consumed = consumption(choice.request.capacity, device.capacity, self._features)
        self._shares.setdefault(device.id, []).append(choice.consumed)
        amounts = self._shared_amounts.setdefault(device.id, {})
        for name, consumed in choice.consumed.items():
            amounts[name] = amounts.get(name, Decimal(0)) + consumed.value

    def _is_shared(self, device: DeviceId) -> bool:
        """Its counters are taken by an earlier share."""
        if device in self._state.capacity or self._shares.get(device):
            return True
        return device in self._state.shares and not self._features.shares_without_capacity_count_again

    def _counters_of(self, device: SliceDevice) -> SharedCounters:
        pool = device.id[:2]
        if pool not in self._counters:
            self._counters[pool] = SharedCounters(self._pools[pool], self._state)
        return self._counters[pool]

    def _undo(self, choice: ChosenDevice) -> None:
        added: list[Constraint] = self._constraints[choice.claim][: choice.constraints]
        for constraint in reversed(added):
            constraint.remove(choice.request)
        if choice.counted:
            self._counters_of(choice.device).release(choice.device)


def _tolerated(taint: Mapping[str, Any], request: DeviceRequest) -> bool:
    return any(_covers(toleration, taint) for toleration in request.tolerations)


def _covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Unlike for nodes, a toleration without a key and with the operator Equal compares values."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    return operator == "Exists" or (
        operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
    )
