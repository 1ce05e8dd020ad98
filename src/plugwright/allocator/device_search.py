"""The search for devices: every combination in upstream's order, until one satisfies all claims of a pod.

Upstream recurses once per device; here the same steps run on an explicit stack, because a pod with many claims would
exceed Python's recursion limit.
"""

from collections.abc import Iterator
from typing import NamedTuple

from plugwright.allocator.allocation_attempt import AllocationAttempt, ChosenDevice, DeviceRejection
from plugwright.allocator.cel import SelectorError
from plugwright.allocator.device_requests import MAX_DEVICES, ClaimRequests, DeviceRequest
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import DeviceId, SliceDevice, compiled, device_name
from plugwright.allocator.reasons import Reason
from plugwright.allocator.slice_pools import NodeView, SlicePool
from plugwright.errors import AllocationAborted

__all__ = ["DeviceSearch"]

_DONE, _FAILED, _EXCEEDED = "done", "failed", "exceeded"
_IN_USE = ("AlreadyAllocated", "UsedByOtherRequest")  # checked before the selectors, as upstream does


class _Position(NamedTuple):
    """The next device to find. `alternative` is a subrequest once it is `chosen`; `start` is an index of devices."""

    claim: int
    request: int = 0
    alternative: int = 0
    chosen: bool = False
    device: int = 0
    start: int = 0


_Step = _Position | str


class _Choice:
    """A request with subrequests: the alternative that is tried now."""

    __slots__ = ("all_exceeded", "position")

    def __init__(self, position: _Position) -> None:
        self.position = position._replace(alternative=-1)
        self.all_exceeded = True


class _Slot:
    """One device of a request: the candidate that is tried now."""

    __slots__ = ("choice", "position", "request")

    def __init__(self, position: _Position, request: DeviceRequest) -> None:
        self.position, self.request = position, request
        self.choice: ChosenDevice | None = None


class DeviceSearch:
    """One attempt to allocate claims on a node. `rejections` are the first reasons against each device."""

    def __init__(
        self, claims: tuple[ClaimRequests, ...], pools: list[SlicePool], node: NodeView, features: Features,
        attempt: AllocationAttempt,
    ) -> None:  # fmt: skip
        self._claims, self._node, self._features = claims, node, features
        self.pools, self.attempt = pools, attempt
        usable = (slice_ for pool in pools if pool.usable for slice_ in pool.slices)
        self._devices = [device for slice_ in usable for device in slice_.devices]
        self._suffixes: dict[tuple[int, str], list[int]] = {}
        self._evaluated: dict[tuple[int, str], dict[int, bool]] = {}  # whether a device can ever be chosen, by position
        self._all: dict[tuple[int, str], list[SliceDevice]] = {}
        self.rejections: dict[tuple[int, str, DeviceId], DeviceRejection] = {}
        self.most_found: dict[tuple[int, str], int] = {}
        self.selected: dict[tuple[int, int], int] = {}  # the alternative of a request
        self._stack: list[_Choice | _Slot] = []
        self._from = 0  # the claim whose search has just ended

    def run(self, max_steps: int) -> bool:
        """Whether all claims got their devices. Raises `AllocationAborted` for claims that cannot be allocated."""
        for number, claim in enumerate(self._claims):
            self._check_size(number, claim)
        step: _Step = _Position(0)
        self._steps_left = max_steps
        while True:
            if isinstance(step, _Position):
                step = self._enter(step)
            elif step is _DONE:
                self._remember_alternatives()
                return True
            elif not self._stack:
                if step is _EXCEEDED and self._from == 0:
                    raise AllocationAborted("allocation max size exceeded")
                return False
            else:
                frame = self._stack[-1]
                # Another choice for an earlier claim can leave this claim alternatives with fewer devices.
                crossed = step is _EXCEEDED and frame.position.claim < self._from
                step = self._resume(frame, _FAILED if crossed else step)

    def _check_size(self, number: int, claim: ClaimRequests) -> None:
        least = 0
        for request in claim.requests:
            for alternative in request.alternatives:
                if alternative.takes_all:
                    self._all[number, alternative.name] = self._all_devices(number, alternative)
            least += min(self._wanted(number, alternative) for alternative in request.alternatives)
        if least > MAX_DEVICES:
            text = f"number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
            reason = Reason("TooManyDevices", claim.name, message=text)
            raise AllocationAborted(f"claim {claim.name}: {text}", reasons=[reason])

    def _all_devices(self, claim: int, request: DeviceRequest) -> list[SliceDevice]:
        for pool in self.pools:
            if not pool.usable:
                state = "being updated" if pool.incomplete else "invalid"
                text = f"asks for all devices, but resource pool {pool} is currently {state}"
                where = f"claim {self._claims[claim].name}, request {request.short_name}"
                reason = Reason(
                    "PoolIncomplete" if pool.incomplete else "PoolInvalid",
                    self._claims[claim].name, request.name, pool.driver, pool.name, message=pool.invalid,
                )  # fmt: skip
                raise AllocationAborted(f"{where}: {text}", reasons=[reason])
        found = []
        lacks = self.attempt.lacks_capacity_alone
        if self._features.all_skips_full_devices:
            lacks = self.attempt.lacks_capacity
        for device in self._devices:
            rejection = self._unselectable(claim, request, device) or lacks(claim, request, device)
            if rejection is None:
                found.append(device)
            else:
                self._reject(claim, request, device, rejection)
        return found

    def _wanted(self, claim: int, request: DeviceRequest) -> int:
        return len(self._all[claim, request.name]) if request.takes_all else request.count

    def _enter(self, position: _Position) -> _Step:
        """Looks for the device at a position; the next position, or how the search ended."""
        if position.claim >= len(self._claims):
            return _DONE
        requests = self._claims[position.claim].requests
        if position.request >= len(requests):
            return _Position(position.claim + 1)
        if requests[position.request].prioritized and not position.chosen:
            choice = _Choice(position)
            self._stack.append(choice)
            return self._next_alternative(choice)
        request = requests[position.request].alternatives[position.alternative]
        wanted = self._wanted(position.claim, request)
        self._from = position.claim
        if request.takes_all and not wanted:
            self.most_found.setdefault((position.claim, request.name), 0)
            return _FAILED
        if position.device >= wanted:
            return _Position(position.claim, position.request + 1)
        if wanted - position.device > MAX_DEVICES - len(self.attempt.chosen[position.claim]):
            return _EXCEEDED
        slot = _Slot(position, request)
        self._stack.append(slot)
        return self._next_device(slot)

    def _resume(self, frame: _Choice | _Slot, outcome: str) -> _Step:
        """Tries the next candidate after the rest of the search has failed with the last one."""
        if isinstance(frame, _Choice):
            if outcome is not _EXCEEDED:
                frame.all_exceeded = False
            return self._next_alternative(frame)
        if frame.choice is not None:
            self.attempt.take_back(frame.choice)
            frame.choice = None
        if frame.request.takes_all or outcome is _EXCEEDED:
            return self._leave(outcome)
        return self._next_device(frame)

    def _leave(self, outcome: str) -> str:
        self._from = self._stack.pop().position.claim
        return outcome

    def _next_alternative(self, frame: _Choice) -> _Step:
        position = frame.position = frame.position._replace(alternative=frame.position.alternative + 1)
        request = self._claims[position.claim].requests[position.request]
        if position.alternative >= len(request.alternatives):
            return self._leave(_EXCEEDED if frame.all_exceeded else _FAILED)
        return _Position(position.claim, position.request, position.alternative, chosen=True)

    def _next_device(self, slot: _Slot) -> _Step:
        position, request = slot.position, slot.request
        if request.takes_all:
            return self._required_device(slot)
        attempt, claim = self.attempt, position.claim
        needed = self._wanted(claim, request) - position.device
        suffix = self._possible_from(claim, request) if needed > 1 else None
        for place in range(position.start, len(self._devices)):
            if suffix is not None and suffix[place] < needed:
                break
            self._steps_left -= 1
            if self._steps_left < 0:
                raise AllocationAborted("filter operation aborted: the search took too many steps", on_node=True)
            device = self._devices[place]
            rejection = attempt.in_use(claim, request, device)
            if rejection is None:
                rejection = self._unselectable(claim, request, device)
                if needed > 1:
                    possible = rejection is None and not attempt.is_tainted(request, device)
                    self._evaluated.setdefault((claim, request.name), {})[place] = possible
                rejection = rejection or attempt.lacks_capacity(claim, request, device)
            choice = rejection or attempt.choose(claim, request, device)
            if isinstance(choice, ChosenDevice):
                slot.choice = choice
                slot.position = position._replace(start=place + 1)
                return position._replace(device=position.device + 1, start=place + 1)
            self._reject(claim, request, device, choice)
        key = claim, request.name
        self.most_found[key] = max(self.most_found.get(key, 0), position.device)
        return self._leave(_FAILED)

    def _possible_from(self, claim: int, request: DeviceRequest) -> list[int] | None:
        """The number of devices from each position on that can ever be chosen, once every device has been evaluated.

        A search that cannot find enough of them ends early. Not before: upstream would report an error of a selector
        that was not evaluated yet.
        """
        key = claim, request.name
        if key in self._suffixes:
            return self._suffixes[key]
        evaluated = self._evaluated.get(key, {})
        taken = set() if request.admin_access else self.attempt.allocated_devices
        counts = [0]
        for place in reversed(range(len(self._devices))):
            if place not in evaluated and self._devices[place].id not in taken:
                return None
            counts.append(counts[-1] + evaluated.get(place, False))
        self._suffixes[key] = counts[::-1]
        return self._suffixes[key]

    def _required_device(self, slot: _Slot) -> _Step:
        """A device of a request for all devices: if it is unavailable, the request fails."""
        position, request = slot.position, slot.request
        device = self._all[position.claim, request.name][position.device]
        choice = self.attempt.choose(position.claim, request, device)
        if not isinstance(choice, ChosenDevice):
            self._reject(position.claim, request, device, choice)
            self.attempt.refuse_violation(choice, position.claim, request, device)
            return self._leave(_FAILED)
        slot.choice = choice
        return position._replace(device=position.device + 1)

    def _unselectable(self, claim: int, request: DeviceRequest, device: SliceDevice) -> DeviceRejection | None:
        if device.has_binding_conditions and not self._features.binding_conditions:
            return "FeatureDisabled", "DRADeviceBindingConditions is disabled"
        class_name = (request.device_class.get("metadata") or {}).get("name", "")
        rejection = self._unselected(f"class {class_name}", request.class_selectors, request, device)
        if rejection is None and request.selectors:
            rejection = self._unselected(f"claim {self._claims[claim].name}", request.selectors, request, device)
        if rejection is None and device.slice.per_device and not self._node.has(device):
            return "NodeMismatch", f"not available on node {self._node.name}"
        return rejection

    def _unselected(
        self, owner: str, selectors: tuple[str, ...], request: DeviceRequest, device: SliceDevice
    ) -> DeviceRejection | None:
        for number, expression in enumerate(selectors):
            where = f"{owner}: selector #{number}"
            try:
                compiled(expression)
            except SelectorError as error:
                raise self._selector_error(f"{where}: CEL compile error: {error}", request, device) from None
            try:
                if device.matches(expression):
                    continue
            except SelectorError as error:
                on_device = "" if self._features.selector_errors_omit_device else f" on device {device_name(device.id)}"
                text = f"{where}{on_device}: CEL runtime error: {error}"
                raise self._selector_error(text, request, device) from None
            return "SelectorFalse", f"{where} is false"
        return None

    def _selector_error(self, text: str, request: DeviceRequest, device: SliceDevice) -> AllocationAborted:
        return AllocationAborted(text, reasons=[Reason("SelectorError", "", request.name, *device.id, message=text)])

    def shown_rejections(self) -> Iterator[tuple[tuple[int, str, DeviceId], DeviceRejection]]:
        """After a search in vain, also of devices in use that it did not reach.

        A device in use that the request does not select either is shown as not selected.
        """
        devices = {device.id: device for device in self._devices}
        requests = {
            (number, alternative.name): alternative
            for number, claim in enumerate(self._claims)
            for request in claim.requests
            for alternative in request.alternatives
        }
        unreached = {
            (*key, device.id): rejection
            for key in self.most_found
            for device in self._devices
            if (rejection := self.attempt.in_use(key[0], requests[key], device))
        }
        for key, rejection in (unreached | self.rejections).items():
            request, device = requests[key[:2]], devices[key[2]]
            expressions = (*request.class_selectors, *request.selectors) if rejection[0] in _IN_USE else ()
            if any(device.matched(expression) is False for expression in expressions):
                yield key, ("SelectorFalse", "a selector is false, and the device is in use")
            else:
                yield key, rejection

    def _reject(self, claim: int, request: DeviceRequest, device: SliceDevice, rejection: DeviceRejection) -> None:
        self.rejections.setdefault((claim, request.name, device.id), rejection)

    def _remember_alternatives(self) -> None:
        for frame in self._stack:
            if isinstance(frame, _Choice):
                position = frame.position
                self.selected[position.claim, position.request] = position.alternative
