"""What a plugin finds on its node: stored answers, and that a plugin which cannot use them is served all the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from plugwright import Allocation, Device, Plugin, Settings
from plugwright.sdk.node_state import NodeState, StoredAllocation
from plugwright.testing import KubeletSettings, pod_requesting, running

TAPE = "example.com/tape"
PATIENT = KubeletSettings(timeout=60)


class Tape(Plugin):
    """Keeps what `restore` was called with, and when."""

    resource = TAPE

    def __init__(self, error: Exception | None = None) -> None:
        self.stored: list[Sequence[StoredAllocation] | None] = []
        self.directory: Path | None = None
        self.node: NodeState | None = None
        self.calls: list[str] = []
        self._error = error

    async def restore(self, node: NodeState) -> None:
        self.calls.append("restore")
        self.stored.append(await node.allocations())
        self.node, self.directory = node, node.directory
        if self._error is not None:
            raise self._error

    async def discover(self) -> list[Device]:
        self.calls.append("discover")
        return [Device("st0"), Device("st1")]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        nodes = [f"/dev/{device.id}" for device in devices]
        return Allocation({"TAPE": "1"}, ["/run/tape"], nodes, {"a": "b"}, ["example.com/tape=st0"])


async def test_a_plugin_gets_what_the_kubelet_has_stored_before_it_discovers(tmp_path: Path) -> None:
    first, second = Tape(), Tape()
    async with running(first, tmp_path, PATIENT):
        pass
    async with running(Tape(), tmp_path, PATIENT) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 2}))
    async with running(second, tmp_path, PATIENT, Settings(state_dir=tmp_path / "state")):
        assert second.node is not None
        assert await second.node.allocations(current=True) == [], "the pod is not on this kubelet any more"
    assert (first.stored, first.directory) == ([[]], None)
    assert (second.calls, second.directory) == (["restore", "discover"], tmp_path / "state")
    assert second.stored == [
        [
            StoredAllocation(
                pod.uid,
                "main",
                ("st0", "st1"),
                env={"TAPE": "1"},
                annotations={"a": "b"},
                cdi=("example.com/tape=st0",),
                mounts=("/run/tape",),
                nodes=("/dev/st0", "/dev/st1"),
            )
        ]
    ]


async def test_a_plugin_that_cannot_restore_is_served_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(Tape(OSError("the disk is full")), tmp_path, PATIENT) as kubelet:
        assert await kubelet.allocatable(TAPE) == 2
    [record] = [record for record in caplog.records if "given earlier may not be there" in record.message]
    assert "the disk is full" in vars(record)["error"]


async def test_a_checkpoint_that_cannot_be_read_is_not_one_without_containers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tape = Tape()
    async with running(tape, tmp_path, PATIENT) as kubelet:
        kubelet.paths.checkpoint.write_text("{")
        assert tape.node is not None
        assert await tape.node.allocations() is None
        assert await tape.node.allocations() is None
    assert [record.message for record in caplog.records].count("allocations of containers cannot be read") == 1
