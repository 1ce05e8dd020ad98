"""Two releases on one node offer the same cards in every way, and nothing stays as it is: a card has one holder.

The daemons are processes, beside the emulated kubelet and an API server over TLS. Every step is random: a pod of either
API comes or goes, a daemon is killed, restarted or reloaded with another configuration, the kubelet restarts, somebody
calls List, and files of state get lost or damaged. Who holds a card is asked of the kubelet alone.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos.daemon import Daemon, Launch
from chaos.experiment import NOT_ASKED, Cell, Experiment, Plan, Row
from chaos.node import Node
from tests.plugins.generic.machines import Machine

from plugwright.apiserver.one_node import OneNode
from plugwright.errors import PlugwrightError, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Phase, Pod, Timing
from plugwright.kubelet.pods import PodClaim
from plugwright.protocol import pod_resources
from plugwright.sdk.driver_names import device_name, driver_name
from plugwright.testing import claim_allocation, claim_requesting, pod_requesting

__all__ = ["EXPERIMENTS", "search"]

_TITLE = "two releases offer the same cards, with everything at random over real sockets"
_CARDS = [f"/dev/card{number}" for number in range(3)]
_TIMING = Timing(reconcile=0.05, retry=0.05, max_retry=0.2, prepare=0.5, unprepare_retry=0.1)
_NUMBERED = "example.com/two"
_STEPS, _QUICK_STEPS = 5000, 200
_START = 10.0  # seconds
_MOST_PODS = 6


def _entry(
    name: str, serve: str = "device-plugin", count: int = 1, cards: Sequence[str] = _CARDS
) -> Mapping[str, object]:
    kind = "share" if count > 1 else "whole"
    shared = {"count": count} if count > 1 else {}
    ids = {"ids": "index"} if name.startswith(_NUMBERED) else {}  # which tell nothing about the hardware
    return {**ids, "name": name, "paths": list(cards), "serve": serve, "env": {"CHAOS_KIND": kind}, **shared}


def _configs(name: str) -> list[list[Mapping[str, object]]]:
    return [
        [_entry(name)],
        [_entry(name, "dra")],
        [_entry(name, "both")],
        [_entry(name, count=2)],
        [_entry(name, cards=_CARDS[:1]), _entry(f"{name}-shared", count=2, cards=_CARDS[1:])],
        [_entry(name, "dra", cards=_CARDS[:2]), _entry(f"{name}-whole", cards=_CARDS[1:])],
    ]


@dataclass(slots=True)
class _Release:
    """One of the two: its directories, its daemon, and what it is configured to serve."""

    name: str
    node: Node
    daemon: Daemon
    configs: list[list[Mapping[str, object]]]
    config: list[Mapping[str, object]] = field(default_factory=list)

    def configure(self, chance: random.Random, cdi: Path, machine: Path) -> None:
        self.config = chance.choice(self.configs)
        new = self.node.config.with_name("new")
        new.write_text(json.dumps({"resources": self.config, "host": {"root": str(machine), "cdi": str(cdi)}}))
        new.replace(self.node.config)

    @property
    def by_claims(self) -> dict[str, str]:
        """The driver of each resource that claims may have."""
        names = (str(entry["name"]) for entry in self.config if entry["serve"] != "device-plugin")
        return {name: driver_name(name) for name in names}


@dataclass(slots=True)
class _Life:
    """The node. `done` counts the steps that did something; `violations` is what must stay empty."""

    root: Path
    chance: random.Random
    kubelet: Kubelet
    api: OneNode
    releases: list[_Release]
    pods: list[Pod] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    number: int = 0

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[bool]]]] = [
            (30, self.plugin_pod), (16, self.claim_pod), (36, self.end_pod), (4, self.retry_pod),
            (3, self.foreign_list), (2, self.reload), (1, self.kill), (1, self.restart), (1, self.kubelet_restarts),
            (2, self.lose_file), (2, self.damage_file),
        ]  # fmt: skip
        [(_, step)] = self.chance.choices(steps, [weight for weight, _ in steps])
        self.trace = [*self.trace[-30:], step.__name__]
        if await step():
            self.done[step.__name__] += 1
        self.look()

    # Pods.

    async def plugin_pod(self) -> bool:
        counts = self.kubelet.node()
        free = [name for name, count in counts.items() if count.allocatable]
        if not free or len(self.pods) >= _MOST_PODS:
            return False
        self.number += 1
        try:
            wanted = pod_requesting({self.chance.choice(free): 1}, name=f"p{self.number}")
            self.pods.append(await self.kubelet.admit(wanted))
        except PodRefused:
            return False
        return True

    async def claim_pod(self) -> bool:
        drivers = {name: driver for release in self.releases for name, driver in release.by_claims.items()}
        if not drivers or len(self.pods) >= _MOST_PODS:
            return False
        self.number += 1
        claim = claim_requesting({self.chance.choice(sorted(drivers)): 1})
        wanted = pod_requesting({}, name=f"p{self.number}", claims=[claim])
        if claim_allocation.allocate(self.api, ("default", wanted.name), claim, drivers):
            return False
        self.api.reserve("default", wanted.name, (wanted.name, wanted.uid))
        pod = await self.kubelet.add(replace(wanted, claims=(PodClaim("claim-0", wanted.name),)))
        self.pods.append(pod)
        await self.kubelet.start_waiting(pod)
        return True

    async def end_pod(self) -> bool:
        if not self.pods:
            return False
        pod = self.pods.pop(self.chance.randrange(len(self.pods)))
        await self.kubelet.remove(pod)
        if pod.spec.claims:
            claim_allocation.release(self.api, "default", pod.spec.name, pod.uid)
        return True

    async def retry_pod(self) -> bool:
        waiting = [pod for pod in self.pods if pod.phase is Phase.PENDING]
        for pod in waiting:
            await self.kubelet.start_waiting(pod)
        return bool(waiting)

    # What happens to them.

    async def foreign_list(self) -> bool:
        """Another program on the node asks for all pods."""
        with suppress(OSError, PlugwrightError):
            async with pod_resources.connect(self.kubelet.paths.pod_resources_socket) as kubelet:
                await kubelet.pods(_START)
        return True

    async def reload(self) -> bool:
        self._configure(self.chance.choice(self.releases))
        return True

    async def kill(self) -> bool:
        release = self.chance.choice(self.releases)
        await release.daemon.stop(signal.SIGKILL)
        if self.chance.random() < 0.5:
            self._configure(release)
        await self._start(release)
        return True

    async def restart(self) -> bool:
        release = self.chance.choice(self.releases)
        await release.daemon.stop()
        self._configure(release)
        await self._start(release)
        return True

    async def kubelet_restarts(self) -> bool:
        await self.kubelet.restart()
        return True

    async def lose_file(self) -> bool:
        path = self._some_file()
        if path is not None:
            path.unlink(missing_ok=True)
        return path is not None

    async def damage_file(self) -> bool:
        path = self._some_file()
        if path is not None:
            path.write_bytes(b'{"damaged')
        return path is not None

    def _some_file(self) -> Path | None:
        """One that a daemon has written to remember offers, splits or claims."""
        places = [self.root / "node" / "offers", self.root / "cdi", self.kubelet.paths.plugins]
        places += [release.node.state for release in self.releases]
        found = [path for place in places for path in place.rglob("*.json") if path.is_file()]
        return self.chance.choice(sorted(found)) if found else None

    def _configure(self, release: _Release) -> None:
        release.configure(self.chance, self.root / "cdi", self.root / "host")
        self.trace.append(f"{release.name}: {[(entry['name'], entry['serve']) for entry in release.config]}")

    async def _start(self, release: _Release) -> None:
        """Half of the time without waiting until it is there."""
        release.daemon.start()
        if self.chance.random() < 0.5:
            with suppress(TimeoutError):
                async with asyncio.timeout(_START):
                    while await release.daemon.status() is None:
                        await asyncio.sleep(0.02)

    # What is seen from outside.

    def look(self) -> None:
        holders: dict[str, list[tuple[str, str]]] = {}
        for pod in list(self.kubelet.pods):
            if pod.phase is Phase.RUNNING and pod.state("main").running:
                for card, kind in self._held_by(pod):
                    holders.setdefault(card, []).append((pod.spec.key, kind))
        for card, found in holders.items():
            if len(found) > 1 and any(kind != "share" for _, kind in found):
                self.violations.append(f"{card} is held by {found} after {' → '.join(self.trace)}")

    def _held_by(self, pod: Pod) -> list[tuple[str, str]]:
        if not pod.spec.claims:
            granted = self.kubelet.granted(pod, "main")
            return [(node.host_path, granted.env["CHAOS_KIND"]) for node in granted.nodes]
        claim = self.api.stored_claim("default", pod.spec.name)
        results = claim["status"]["allocation"]["devices"]["results"] if claim is not None else ()
        # Entries that claims can have begin with the first card, so that a number means the same card in all of them.
        names = {device_name(Path(card).name): card for card in _CARDS}
        names |= {device_name(str(number)): card for number, card in enumerate(_CARDS)}
        return [(names[result["device"]], "claim") for result in results]


async def search(steps: int, seed: int) -> _Life:
    """So many steps that did something, or until a card has two holders."""
    chance = random.Random(seed)
    with TemporaryDirectory(prefix="chaos-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        async with AsyncExitStack() as stack:
            root = Path(directory)
            machine = Machine(root / "host")
            for card in _CARDS:
                machine.write(card)
            (root / "cdi").mkdir()
            api = OneNode("node")
            kubeconfig = await stack.enter_async_context(api.served(root))
            kubelet = Kubelet(root / "k", KubeletSettings(strict=False, timing=_TIMING), resource_api=api)
            await stack.enter_async_context(kubelet)
            life = _Life(root, chance, kubelet, api, [_release(name, root, kubeconfig) for name in ("one", "two")])
            stack.push_async_callback(_end, life)
            for release in life.releases:
                life._configure(release)
                release.daemon.start()
            async with asyncio.timeout(_START):
                while not (kubelet.node() or api.slices):
                    await asyncio.sleep(0.02)
            while life.done.total() < steps and not life.violations:
                await life.step()
    return life


async def _end(life: _Life) -> None:
    for release in life.releases:
        await release.daemon.stop()


def _release(name: str, root: Path, kubeconfig: Path) -> _Release:
    node = Node(root / name, root / "k", root / "k")
    for directory in (node.config.parent, node.control.parent, node.state):
        directory.mkdir(parents=True)
    environment = {
        "PLUGWRIGHT_RELEASE": f"default/{name}",
        "PLUGWRIGHT_NODE_DIR": str(root / "node"),
        "NODE_NAME": "node",
        "KUBECONFIG": str(kubeconfig),
    }
    daemon = Daemon(node, Launch(environment=environment, probes=False))
    return _Release(name, node, daemon, _configs(f"example.com/{name}"))


async def _experiment(plan: Plan) -> Row:
    life = await search(plan.choose(_STEPS, _QUICK_STEPS), plan.seed)
    pods = life.done["plugin_pod"] + life.done["claim_pod"]
    seen = Cell(f"{life.done.total():,} steps with {pods:,} pods, seed {plan.seed}")
    lost = Cell(life.violations[0] if life.violations else "nothing", not life.violations)
    return Row("holders", _TITLE, NOT_ASKED, NOT_ASKED, seen, lost)


EXPERIMENTS: tuple[Experiment, ...] = (Experiment("holders", _TITLE, _experiment, limit=3600),)
