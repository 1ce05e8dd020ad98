"""Whatever happens in whatever order: no device has two exclusive claims, and nothing is left behind."""

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests import removal
from tests.dra.resource_claims.claim_node import ClaimNode, claim, document, edits, result

from plugwright.dra.resource_claims.claim_setup import PreparationSettings
from plugwright.errors import PluginError
from plugwright.model import Allocation, Device

MEMORY = "/dev/shm"  # every step syncs files, for which a disk takes most of the time
NAMES = [f"claim-{number}" for number in range(4)]
names = st.sampled_from(NAMES)
devices = st.lists(st.sampled_from(["st0", "st1"]), min_size=1, max_size=2, unique=True)
kinds = st.sampled_from(["exclusive", "exclusive", "shared", "admin"])


class PreparationAtRandom(RuleBasedStateMachine):
    """`ready` are the claims whose last prepare succeeded, and that were not unprepared since."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory(prefix="k-", dir=MEMORY)
        self.runner = asyncio.Runner()
        self.boots = 1
        self.allocations: dict[str, list[tuple[str, str]]] = {}  # devices and kinds, by the uid of the claim
        self.ready: dict[str, str] = {}  # uid → name
        self.versions = dict.fromkeys(NAMES, 0)

    @initialize(chosen=st.lists(devices, min_size=4, max_size=4), kinds=st.lists(kinds, min_size=4, max_size=4))
    def start(self, chosen: list[list[str]], kinds: list[str]) -> None:
        once = PreparationSettings(limit=10.0, first_retry=30.0)  # one attempt, without a wait for another
        self.node = self.runner.run(self.made(once))
        for name, some, kind in zip(NAMES, chosen, kinds, strict=True):
            self.allocate(name, some, kind)

    async def made(self, once: PreparationSettings) -> ClaimNode:
        return ClaimNode.on(Path(self.directory.name), settings=once)

    def uid(self, name: str) -> str:
        return f"{name}-{self.versions[name]}"

    def allocate(self, name: str, chosen: list[str], kind: str) -> None:
        self.versions[name] += 1
        kinds: dict[str, dict[str, object]] = {
            "shared": {"shareID": f"s-{self.uid(name)}"},
            "admin": {"adminAccess": True},
        }
        more = kinds.get(kind, {})
        self.allocations[self.uid(name)] = [(device, kind) for device in chosen]
        self.node.api.put(document(name, *(result(device, "tape", **more) for device in chosen), uid=self.uid(name)))

    @rule(name=names)
    def prepare(self, name: str) -> None:
        answer = self.runner.run(self.node.prepare(claim(name, self.uid(name))))
        if isinstance(answer, str):
            return
        self.ready[self.uid(name)] = name
        assert {device.name for device in answer} == {device for device, _ in self.allocations[self.uid(name)]}
        assert all(edits(self.node, name) for device in answer for name in device.cdi_devices)

    @rule(order=st.permutations(NAMES))
    def prepare_all(self, order: list[str]) -> None:
        for name in order:
            self.prepare(name)

    @rule(name=names)
    def prepare_with_a_plugin_that_fails(self, name: str) -> None:
        def fail(given: object) -> Allocation:
            raise PluginError("jammed")

        self.node.drives.allocation = fail
        self.prepare(name)
        self.node.drives.allocation = None

    @rule(name=names)
    def prepare_and_be_cancelled(self, name: str) -> None:
        """The call ends while the plugin is at work, and so does the process."""

        def cancel(given: object) -> Allocation:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return Allocation()

        self.node.drives.allocation = cancel
        with suppress(asyncio.CancelledError):
            self.prepare(name)
        self.node.drives.allocation = None
        self.restart()

    @rule(name=names)
    def unprepare(self, name: str) -> None:
        assert self.runner.run(self.node.unprepare(claim(name, self.uid(name)))) == ""
        self.ready.pop(self.uid(name), None)

    @rule(name=names, chosen=devices, kind=kinds)
    def replace_claim(self, name: str, chosen: list[str], kind: str) -> None:
        """Its pod has ended and the claim is deleted; the next of that name has what the scheduler gives it."""
        self.unprepare(name)
        self.allocate(name, chosen, kind)

    @rule(name=names)
    def abandon_claim(self, name: str) -> None:
        """A claim that was never prepared is replaced, and the kubelet has forgotten it."""
        if self.uid(name) not in self.ready:
            self.allocate(name, ["st0"], "exclusive")

    @rule()
    def restart(self) -> None:
        self.node = self.runner.run(self.again())

    async def again(self, **changes: Any) -> ClaimNode:
        return self.node.restart(**changes)

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        for path in self.node.cdi_files():
            path.unlink()
        self.node = self.runner.run(self.again(boot_id=f"boot-{self.boots}"))

    @rule()
    def damage_the_checkpoint(self) -> None:
        if self.node.checkpoint.exists():
            self.node.checkpoint.write_bytes(b"damaged")
            self.restart()
            self.runner.run(self.node.preparation.abandoned.undo())

    @rule(name=names)
    def prepare_without_api_server(self, name: str) -> None:
        self.node.api.away = True
        self.prepare(name)
        self.node.api.away = False

    @rule()
    def look_up(self) -> None:
        self.runner.run(self.node.preparation.abandoned.undo())

    @rule(health=st.booleans())
    def device_health(self, health: bool) -> None:
        self.node.drives.devices["st1"] = Device("st1") if health else Device("st1").unhealthy("jammed")

    @invariant()
    def no_device_is_given_twice(self) -> None:
        holders: dict[str, list[str]] = {}
        for uid in self.ready:
            for device, kind in self.allocations[uid]:
                if kind != "admin":
                    holders.setdefault(device, []).append(kind)
        for device, kinds in holders.items():
            assert kinds == ["exclusive"] or set(kinds) == {"shared"}, (device, kinds)

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.api.away = True
            for name, version in self.versions.items():
                for number in range(version + 1):
                    assert self.runner.run(self.node.unprepare(claim(name, f"{name}-{number}"))) == ""
            assert self.node.leftovers() == []
            assert self.node.prepared.held() == {}
        self.runner.close()
        removal.remove(self.directory)


PreparationAtRandom.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_preparation_at_random = PreparationAtRandom.TestCase
