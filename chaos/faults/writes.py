"""The daemon is killed at every write: of cordons, of device files, of its sockets, at its start and at its end."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos.daemon import Daemon, Launch
from chaos.experiment import NOT_ASKED, Cell, Experiment, Plan, Row
from chaos.kubelets import EmulatedKubelet
from chaos.node import RESOURCES, STEADY, Node

from plugwright.errors import PlugwrightError

__all__ = ["EXPERIMENTS"]

_INTERPOSE = Path(__file__).parents[1] / "interpose"
_REASON = "killed meanwhile"
_WELL_LIMIT = 20.0
_RESTARTED_AFTER = 1.2  # seconds; a younger socket may be of a daemon that has just begun
_EVERY_QUICK = 12
_TITLE = "the daemon is killed (SIGKILL) at each of its writes"


@dataclass(slots=True)
class _Run:
    """A node whose daemon does all it ever writes; `promised` are the cordons that it has answered for."""

    node: Node
    daemon: Daemon
    kubelet: EmulatedKubelet
    devices: list[str] = field(default_factory=list)
    promised: dict[str, bool] = field(default_factory=dict)

    async def live(self) -> None:
        """To the end, or until it is killed."""
        with suppress(_Ended):
            await self._until(self._all_listed)
            self.devices = sorted(await self.kubelet.healthy(STEADY))
            await self._cordon(self.devices[0], cordoned=True)
            await self._cordon(self.devices[1], cordoned=True)
            await self._cordon(self.devices[1], cordoned=False)
            await self.kubelet.stop()
            await self.kubelet.start()
            await self._until(self._all_listed)
        await self.daemon.stop()

    async def recover(self) -> list[str]:
        """What is wrong after the next start, if anything; it comes a little later, as from any supervisor."""
        await asyncio.sleep(_RESTARTED_AFTER)
        self.daemon.launch = Launch()
        self.daemon.start()
        try:
            await self._until(self._all_listed)
        except (TimeoutError, _Ended):
            return ["not well: " + " / ".join(self.daemon.lines()[-2:])]
        problems = [*await self._wrong_cordons(), *self._torn_files()]
        await self.daemon.stop()
        names = {name for name in self.node.files() if name.endswith(".sock") or "/." in name}
        return [*problems, *(f"left {name}" for name in sorted(names))]

    async def _cordon(self, device_id: str, *, cordoned: bool) -> None:
        """What is not answered may or may not hold; what is answered must."""
        self.promised.pop(device_id, None)
        request = {"do": "cordon" if cordoned else "uncordon", "resource": STEADY, "id": device_id, "reason": _REASON}
        try:
            await self.daemon.ask(request, 10)
        except (OSError, PlugwrightError, ValueError, RuntimeError):
            if not await self.daemon.ended(5):
                raise
            raise _Ended from None
        self.promised[device_id] = cordoned

    async def _wrong_cordons(self) -> list[str]:
        status = await self.daemon.status(10)
        assert status is not None
        listed = [device for found in status["resources"] if found["name"] == STEADY for device in found["devices"]]
        cordoned = {device["id"] for device in listed if _REASON in device["reason"]}
        lost = [device for device, promised in self.promised.items() if promised != (device in cordoned)]
        return [f"cordon of {device} is not what was answered" for device in lost]

    def _torn_files(self) -> list[str]:
        torn = []
        for path in self.node.state.rglob("*.json"):
            try:
                json.loads(path.read_bytes())
            except ValueError:
                torn.append(f"torn: {path.name}")
        return torn

    async def _all_listed(self) -> bool:
        counts = [len(await self.kubelet.healthy(name)) for name in RESOURCES if name != STEADY]
        wanted = [count for name, count in RESOURCES.items() if name != STEADY]
        return counts == wanted and len(await self.kubelet.healthy(STEADY)) >= RESOURCES[STEADY] - 2

    async def _until(self, fact: Callable[[], "asyncio.Future[bool] | object"]) -> None:
        deadline = time.monotonic() + _WELL_LIMIT
        while not await fact():  # type: ignore[misc]
            if not self.daemon.alive:
                raise _Ended
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(0.01)


class _Ended(Exception):
    """The daemon was killed."""


async def _kill_at(step: int) -> tuple[list[str], list[str], float, list[str]]:
    """The steps of a life that ends at `step`, what is wrong afterwards, and the seconds until it is well again."""
    with TemporaryDirectory(prefix="chaos-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        node = Node(root, root / "k", root / "k")
        steps = root / "steps"
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_INTERPOSE), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CHAOS_ROOT": directory,
            "CHAOS_KILL_AT": str(step),
            "CHAOS_STEPS": str(steps),
        }
        run = _Run(node, Daemon(node, Launch(environment=variables, probes=False)), EmulatedKubelet(node))
        node.furnish()
        await run.kubelet.start()
        try:
            run.daemon.start()
            await run.live()
            code = run.daemon.code
            began = time.monotonic()
            problems = await run.recover()
            taken = time.monotonic() - began
        finally:
            if run.daemon.alive:
                await run.daemon.stop(signal.SIGKILL)
            await run.kubelet.stop()
        killed = [] if not step or code == -signal.SIGKILL else [f"it ended with {code} instead"]
        return steps.read_text().splitlines() if steps.exists() else [], problems, taken, killed


async def _at_every_write(plan: Plan) -> Row:
    steps, problems, _, _ = await _kill_at(0)
    wrong = [f"without a kill: {problem}" for problem in problems]
    tried, longest = 0, 0.0
    for step in range(1, len(steps) + 1, plan.choose(1, _EVERY_QUICK)):
        _, problems, taken, unkilled = await _kill_at(step)
        tried += not unkilled
        longest = max(longest, taken)
        wrong += [f"{steps[step - 1].rpartition('/')[2]}: {problem}" for problem in problems]
    recovered = Cell(f"{tried} of {len(steps)} writes, each time recovered within {longest:.1f} s", tried > 0)
    return Row("writes", _TITLE, NOT_ASKED, NOT_ASKED, recovered, Cell("; ".join(wrong) or "nothing", not wrong))


EXPERIMENTS = (Experiment("writes", _TITLE, _at_every_write, limit=3600),)
