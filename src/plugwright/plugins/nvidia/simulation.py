"""A simulated machine with GPUs: a `GpuDriver` without hardware, in which faults can be injected.

The machines are data in `simulated_machines`. A lock protects the state: threads read it while commands change it.
"""

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from plugwright.errors import DriverGone, PluginError
from plugwright.model import some
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.driver import (
    SWITCH,
    DriverLoad,
    EventKind,
    FaultInjection,
    Gpu,
    GpuEvent,
    GpuHealth,
    GpuLinks,
    GpuProcess,
    GpuSnapshot,
    GpuUse,
    RecoveryAction,
)
from plugwright.system.boot import boot_id

__all__ = ["SimulatedDriver", "SimulatedEvents"]

_LOST = "GPU is lost"
_GONE = "the driver is not loaded (simulated)"
_SWITCH_ADDRESS = "0000:06:00.0"
_OF_ALL_GPUS = ("driver", "events", "fabric", "sxid")
_HEALTHY = GpuHealth(ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery=RecoveryAction.NONE)


class SimulatedDriver:
    """A `GpuDriver` of the machine called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        machine = simulated_machines.load(name)
        self._lock = threading.Condition()
        self._present = {gpu.uuid: gpu for gpu in machine.gpus}
        self._absent: dict[str, Gpu] = {}
        self._health = dict.fromkeys(self._present, _HEALTHY)
        self._links = machine.links
        self._processes: dict[str, dict[int, int]] = {}  # by GPU: bytes by pid
        self._gone = ""
        self._without_events: set[str] = set()
        self._failing_events = ""
        self._event_sets: list[SimulatedEvents] = []
        self.reads = 0  # number of reads

    def read(self) -> GpuSnapshot:
        with self._lock:
            self._check_loaded()
            self.reads += 1
            gpus = sorted(self._present.values(), key=lambda gpu: gpu.index)
            pairs = {pair: link for pair, link in self._links.pairs.items() if self._present.keys() >= set(pair)}
            return GpuSnapshot(
                driver=simulated_machines.DRIVER_VERSION,
                cuda=simulated_machines.CUDA_VERSION,
                gpus=tuple(replace(gpu, fault=self._health[gpu.uuid].fault) for gpu in gpus),
                links=GpuLinks(pairs),
            )

    def health(self, uuid: str) -> GpuHealth:
        with self._lock:
            self._check_loaded()
            return self._health[uuid] if uuid in self._present else GpuHealth(fault="not found", away=True)

    def use(self, uuid: str) -> GpuUse | None:
        with self._lock:
            self._check_loaded()
            processes = tuple(GpuProcess(pid, memory) for pid, memory in sorted(self._processes.get(uuid, {}).items()))
            return GpuUse(sum(process.memory or 0 for process in processes), processes)

    def load(self) -> DriverLoad:
        """The same for every process until the machine reboots, to rehearse restarts of a daemon."""
        return DriverLoad(boot_id(), self.name)

    def events(self, uuids: tuple[str, ...]) -> "SimulatedEvents":
        with self._lock:
            self._check_loaded()
            if self._failing_events:
                raise DriverGone(self._failing_events)
            return SimulatedEvents(self._lock, self._event_sets, frozenset(uuids), self._without_events & set(uuids))

    def switch_log(self) -> Path | None:
        """None: its events arrive like all others."""
        return None

    def cards_on_bus(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def inject(self, name: str, arguments: Mapping[str, str]) -> str:
        faults: dict[str, FaultInjection] = {
            "xid": self._xid,
            "sxid": self._sxid,
            "lose": self._lose,
            "reset": self._reset,
            "remove": self._remove,
            "add": self._add,
            "ecc": self._ecc,
            "remap": self._remap,
            "fabric": self._fabric,
            "events": self._events,
            "mig": self._mig,
            "process": self._process,
            "deafen": self._drop_events,
            "driver": self._driver,
        }
        if name not in faults:
            raise PluginError(
                f"a command of a simulated machine must be one of {', '.join(sorted(faults))}, got {name!r}"
            )
        with self._lock:
            uuid = "" if name in _OF_ALL_GPUS else self._find_gpu(arguments.get("id", ""))
            return faults[name](uuid, arguments)

    def _check_loaded(self) -> None:
        if self._gone:
            raise DriverGone(self._gone, unloaded=True)

    def _find_gpu(self, name: str) -> str:
        """The UUID of a GPU by its UUID, its index, or the id of a MIG device or share of it."""
        gpus = {**self._present, **self._absent}
        for uuid, gpu in gpus.items():
            if name.split("::", maxsplit=1)[0] in (uuid, str(gpu.index), *(mig.uuid for mig in gpu.mig)):
                return uuid
        raise PluginError(f"{self.name} has no GPU {name!r} (it has: {some(gpus)})")

    def _send(self, event: GpuEvent) -> None:
        for events in self._event_sets:
            events.add(event)
        self._lock.notify_all()

    def _xid(self, uuid: str, arguments: Mapping[str, str]) -> str:
        code = _number("xid", arguments)
        instance = _number("gi", arguments) if "gi" in arguments else None
        self._send(GpuEvent(EventKind.XID, uuid, code, instance, None if instance is None else 0))
        return f"Xid {code} on {uuid}"

    def _sxid(self, _: str, arguments: Mapping[str, str]) -> str:
        code = _number("sxid", arguments)
        self._send(GpuEvent(EventKind.SXID, f"{SWITCH}{_SWITCH_ADDRESS}", code))
        return f"SXid {code} on {SWITCH}{_SWITCH_ADDRESS}"

    def _lose(self, uuid: str, _: Mapping[str, str]) -> str:
        self._health[uuid] = replace(self._health[uuid], fault=_LOST, away=True, recovery=RecoveryAction.RESET)
        return f"{uuid} is lost"

    def _reset(self, uuid: str, _: Mapping[str, str]) -> str:
        self._health[uuid] = _HEALTHY
        self._without_events.discard(uuid)
        return f"{uuid} was reset"

    def _remove(self, uuid: str, _: Mapping[str, str]) -> str:
        if uuid in self._present:
            self._absent[uuid] = self._present.pop(uuid)
        return f"{uuid} was removed"

    def _add(self, uuid: str, arguments: Mapping[str, str]) -> str:
        if uuid in self._absent:
            self._present[uuid] = self._absent.pop(uuid)
        self._reset(uuid, arguments)
        return f"{uuid} was added"

    def _ecc(self, uuid: str, arguments: Mapping[str, str]) -> str:
        count = _number("count", arguments) if "count" in arguments else 1
        self._health[uuid] = replace(self._health[uuid], ecc_uncorrected=count, recovery=RecoveryAction.RESET)
        self._send(GpuEvent(EventKind.ECC, uuid))
        return f"{count} uncorrected ECC errors on {uuid}"

    def _remap(self, uuid: str, arguments: Mapping[str, str]) -> str:
        state = arguments.get("state", "pending")
        if state not in ("pending", "failed"):
            raise PluginError(f"state must be pending or failed, got {state!r}")
        pending = state == "pending"
        self._health[uuid] = replace(self._health[uuid], remap_pending=pending, remap_failed=not pending)
        return f"row remapping {state} on {uuid}"

    def _fabric(self, _: str, arguments: Mapping[str, str]) -> str:
        """A fault of all GPUs, which have one fabric manager."""
        state = arguments.get("state", "")
        if state not in ("gone", "back"):
            raise PluginError(f"state must be gone or back, got {state!r}")
        fault = "its NVLink fabric is not ready yet: is the fabric manager running? (simulated)"
        self._health = {
            uuid: replace(health, fabric=fault if state == "gone" else "") for uuid, health in self._health.items()
        }
        return f"the fabric manager is {state}"

    def _events(self, _: str, arguments: Mapping[str, str]) -> str:
        """A fault of all GPUs: no event set can be created, and existing ones end."""
        state = arguments.get("state", "")
        if state not in ("failing", "back"):
            raise PluginError(f"state must be failing or back, got {state!r}")
        self._failing_events = "events cannot be received (simulated)" if state == "failing" else ""
        for events in self._event_sets:
            events.broken = self._failing_events or "the event sets have ended (simulated)"
        self._lock.notify_all()
        return f"events are {state}"

    def _mig(self, uuid: str, arguments: Mapping[str, str]) -> str:
        profiles = arguments.get("profiles", "")
        gpus = self._present if uuid in self._present else self._absent
        gpu = replace(gpus[uuid], mig_enabled=False, mig=())
        if profiles != "off":
            gpu = simulated_machines.partition_gpu(gpu, filter(None, profiles.split(",")))
        gpus[uuid] = gpu
        self._send(GpuEvent(EventKind.MIG_CHANGED, uuid))
        return f"MIG devices of {uuid}: {profiles or 'none'}"

    def _process(self, uuid: str, arguments: Mapping[str, str]) -> str:
        """Makes a process of this machine use the GPU; with mib=0 no longer."""
        pid, mebibytes = _number("pid", arguments), _number("mib", arguments)
        self._processes.setdefault(uuid, {}).pop(pid, None)
        if mebibytes:
            self._processes[uuid][pid] = mebibytes * 2**20
        return f"process {pid} uses {mebibytes} MiB of {uuid}"

    def _drop_events(self, uuid: str, _: Mapping[str, str]) -> str:
        self._without_events.add(uuid)
        return f"events of {uuid} cannot be registered from now on"

    def _driver(self, _: str, arguments: Mapping[str, str]) -> str:
        state = arguments.get("state", "")
        if state not in ("gone", "back"):
            raise PluginError(f"state must be gone or back, got {state!r}")
        self._gone = _GONE if state == "gone" else ""
        for events in self._event_sets:
            events.broken = self._gone or "the driver was reloaded (simulated)"
        self._lock.notify_all()
        return f"the driver is {state}"


class SimulatedEvents:
    """An `EventSet`."""

    def __init__(
        self,
        lock: threading.Condition,
        event_sets: "list[SimulatedEvents]",
        uuids: frozenset[str],
        without_events: set[str],
    ) -> None:
        self.watched = uuids - without_events
        self.unwatched = dict.fromkeys(sorted(without_events), "events cannot be registered (simulated)")
        self.broken = ""
        self._lock, self._event_sets = lock, event_sets
        self._queue: deque[GpuEvent] = deque()
        self._event_sets.append(self)

    def add(self, event: GpuEvent) -> None:
        if event.gpu in self.watched or event.kind is EventKind.SXID:
            self._queue.append(event)

    def wait(self, seconds: float) -> GpuEvent | None:
        with self._lock:
            self._lock.wait_for(lambda: self._queue or self.broken, seconds)
            if self.broken:
                raise DriverGone(self.broken)
            return self._queue.popleft() if self._queue else None

    def close(self) -> None:
        with self._lock:
            self._event_sets.remove(self)


def _number(name: str, arguments: Mapping[str, str]) -> int:
    text = arguments.get(name, "")
    if not text:
        raise PluginError(f"{name} is missing: give it as {name}=NUMBER")
    if not text.isdecimal():
        raise PluginError(f"{name} must be a number, got {text!r}")
    return int(text)
