"""A machine with GPUs that does not exist, behind the interface of a real one; what can go wrong goes wrong on command.

How it is built is `machines`' data. It changes under a lock: threads read it while commands change it.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from plugwright.errors import PluginError
from plugwright.model import some
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.driver import DriverGone, Event, EventKind, Facts, Gpu, Links, Reading, Recovery

__all__ = ["SimulatedEvents", "Simulation"]

_LOST = "GPU is lost"
_GONE = "the driver is not loaded (simulated)"
_HEALTHY = Facts(ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery=Recovery.NONE)


class Simulation:
    """A `Driver` of the machine called `name`; `act` does to it what a test or an operator wants to see happen."""

    def __init__(self, name: str) -> None:
        self.name = name
        built = simulated_machines.load(name)
        self._lock = threading.Condition()
        self._present = {gpu.uuid: gpu for gpu in built.gpus}
        self._absent: dict[str, Gpu] = {}
        self._facts = dict.fromkeys(self._present, _HEALTHY)
        self._links = built.links
        self._gone = ""
        self._deaf: set[str] = set()
        self._listeners: list[SimulatedEvents] = []
        self.reads = 0  # how often it was read

    def read(self) -> Reading:
        with self._lock:
            self._check()
            self.reads += 1
            gpus = sorted(self._present.values(), key=lambda gpu: gpu.index)
            return Reading("simulated", "13.0", tuple(map(self._seen, gpus)), self._links_of(set(self._present)))

    def facts(self, uuid: str) -> Facts:
        with self._lock:
            self._check()
            return self._facts[uuid] if uuid in self._present else Facts(fault="not found", away=True)

    def events(self, uuids: tuple[str, ...]) -> "SimulatedEvents":
        with self._lock:
            self._check()
            return SimulatedEvents(self._lock, self._listeners, frozenset(uuids), self._deaf & set(uuids))

    def close(self) -> None:
        """Nothing is held."""

    def act(self, name: str, arguments: Mapping[str, str]) -> str:
        """Does `name` to the machine; returns what was done, in words."""
        acts: dict[str, Callable[[str, Mapping[str, str]], str]] = {
            "xid": self._xid,
            "lose": self._lose,
            "reset": self._reset,
            "remove": self._remove,
            "add": self._add,
            "ecc": self._ecc,
            "remap": self._remap,
            "mig": self._mig,
            "deafen": self._deafen,
            "driver": self._driver,
        }
        if name not in acts:
            raise PluginError(f"a simulated machine takes {', '.join(sorted(acts))}, not {name!r}")
        with self._lock:
            uuid = "" if name == "driver" else self._named(arguments.get("id", ""))
            return acts[name](uuid, arguments)

    def _check(self) -> None:
        if self._gone:
            raise DriverGone(self._gone, unloaded=True)

    def _seen(self, gpu: Gpu) -> Gpu:
        return replace(gpu, fault=self._facts[gpu.uuid].fault)

    def _links_of(self, uuids: set[str]) -> Links:
        return Links({pair: link for pair, link in self._links.pairs.items() if uuids.issuperset(pair)})

    def _named(self, name: str) -> str:
        """A GPU by its UUID or index, or by the id of a part of it."""
        known = {**self._present, **self._absent}
        for uuid, gpu in known.items():
            if name.split("::", maxsplit=1)[0] in (uuid, str(gpu.index), *(mig.uuid for mig in gpu.mig)):
                return uuid
        raise PluginError(f"{self.name} has no GPU {name!r} (there is: {some(known)})")

    def _happen(self, event: Event) -> None:
        for listener in self._listeners:
            listener.add(event)
        self._lock.notify_all()

    def _xid(self, uuid: str, arguments: Mapping[str, str]) -> str:
        code = _number("xid", arguments)
        instance = _number("gi", arguments) if "gi" in arguments else None
        self._happen(Event(EventKind.XID, uuid, code, instance, None if instance is None else 0))
        return f"Xid {code} on {uuid}"

    def _lose(self, uuid: str, _: Mapping[str, str]) -> str:
        self._facts[uuid] = replace(self._facts[uuid], fault=_LOST, away=True, recovery=Recovery.RESET)
        return f"{uuid} is lost"

    def _reset(self, uuid: str, _: Mapping[str, str]) -> str:
        self._facts[uuid] = _HEALTHY
        self._deaf.discard(uuid)
        return f"{uuid} was reset"

    def _remove(self, uuid: str, _: Mapping[str, str]) -> str:
        if uuid in self._present:
            self._absent[uuid] = self._present.pop(uuid)
        return f"{uuid} was pulled out"

    def _add(self, uuid: str, arguments: Mapping[str, str]) -> str:
        if uuid in self._absent:
            self._present[uuid] = self._absent.pop(uuid)
        self._reset(uuid, arguments)
        return f"{uuid} was plugged in"

    def _ecc(self, uuid: str, arguments: Mapping[str, str]) -> str:
        count = _number("count", arguments) if "count" in arguments else 1
        self._facts[uuid] = replace(self._facts[uuid], ecc_uncorrected=count, recovery=Recovery.RESET)
        self._happen(Event(EventKind.ECC, uuid))
        return f"{count} uncorrected ECC errors on {uuid}"

    def _remap(self, uuid: str, arguments: Mapping[str, str]) -> str:
        state = arguments.get("state", "pending")
        if state not in ("pending", "failed"):
            raise PluginError(f"a row's replacement is pending or failed, not {state!r}")
        self._facts[uuid] = replace(self._facts[uuid], remap_pending=state == "pending", remap_failed=state == "failed")
        return f"replacement of a row {state} on {uuid}"

    def _mig(self, uuid: str, arguments: Mapping[str, str]) -> str:
        profiles = arguments.get("profiles", "")
        gpus = self._present if uuid in self._present else self._absent
        cut = replace(gpus[uuid], mig_enabled=False, mig=())
        gpus[uuid] = (
            cut if profiles == "off" else simulated_machines.partitioned(cut, filter(None, profiles.split(",")))
        )
        self._happen(Event(EventKind.MIG_CHANGED, uuid))
        return f"{uuid} was cut into {profiles or 'nothing'}"

    def _deafen(self, uuid: str, _: Mapping[str, str]) -> str:
        self._deaf.add(uuid)
        return f"events of {uuid} cannot be registered from now on"

    def _driver(self, _: str, arguments: Mapping[str, str]) -> str:
        state = arguments.get("state", "")
        if state not in ("gone", "back"):
            raise PluginError(f"a driver is gone or back, not {state!r}")
        self._gone = _GONE if state == "gone" else ""
        for listener in self._listeners:
            listener.broken = self._gone or "the driver was loaded anew (simulated)"
        self._lock.notify_all()
        return f"the driver is {state}"


class SimulatedEvents:
    """What one listener has not heard yet."""

    def __init__(
        self,
        lock: threading.Condition,
        listeners: "list[SimulatedEvents]",
        asked: frozenset[str],
        deaf: set[str],
    ) -> None:
        self.watched = asked - deaf
        self.unwatched = dict.fromkeys(sorted(deaf), "events cannot be registered (simulated)")
        self.broken = ""
        self._lock, self._listeners = lock, listeners
        self._waiting: deque[Event] = deque()
        self._listeners.append(self)

    def add(self, event: Event) -> None:
        if event.gpu in self.watched:
            self._waiting.append(event)

    def wait(self, seconds: float) -> Event | None:
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self.broken, seconds)
            if self.broken:
                raise DriverGone(self.broken)
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        with self._lock:
            self._listeners.remove(self)


def _number(name: str, arguments: Mapping[str, str]) -> int:
    text = arguments.get(name, "")
    if not text.isdecimal():
        raise PluginError(f"{name} is a number, not {text!r}")
    return int(text)
