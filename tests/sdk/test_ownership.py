"""One owner per resource on a node: a second daemon waits, names the owner and is not ready."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace
from tests.observed_kubelet import QUICK

from plugwright import Settings, serving
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import is_ready, report, unready
from plugwright.sdk.ownership import Owner, OwnerLock, owner_file

RESOURCE = "mock/gpu"
HOLDER = """
import signal, sys
from pathlib import Path
from plugwright.sdk.ownership import Owner, OwnerLock
lock = OwnerLock(Path(sys.argv[1]), Owner("fleet/first", "boot", pid=1))
print("taken" if lock.take() is None else "refused", flush=True)
signal.pause()
"""


def own(settings: Settings, directory: Path, release: str, pod: str = "") -> Settings:
    return replace(settings, release=release, pod_uid=pod, state_dir=directory / release, node_dir=directory / "node")


async def started(stack: AsyncExitStack, settings: Settings, count: int) -> Daemon:
    return await stack.enter_async_context(serving(Mock(RESOURCE, MockOptions(count=count)), settings=settings))


async def ready(daemon: Daemon) -> None:
    await daemon.changed.until(lambda: is_ready(daemon.resource(RESOURCE)))


async def test_a_second_release_waits_names_the_owner_and_takes_over_at_its_end(
    root: Path, settings: Settings, tmp_path: Path
) -> None:
    async with Kubelet(root, KubeletSettings(timing=QUICK)) as kubelet, AsyncExitStack() as second_stack:
        async with AsyncExitStack() as first_stack:
            await ready(await started(first_stack, own(settings, tmp_path, "fleet/first"), 12))
            await kubelet.allocatable(RESOURCE, 12)
            second = await started(second_stack, own(settings, tmp_path, "fleet/second"), 4)
            await second.changed.until(lambda: second.resource(RESOURCE).ownership.owner.value)
            (resource,) = report(second)["resources"]
            expected = f"owned by release fleet/first (process {os.getpid()})"
            assert (resource["state"], resource["reason"], resource["owner"]) == ("waiting", expected, expected)
            assert not report(second)["ready"]
            assert unready(second) == [f"{RESOURCE}: waiting {expected}"]
            assert kubelet.node()[RESOURCE].allocatable == 12
        await ready(second)
        await kubelet.allocatable(RESOURCE, 4)
        assert report(second)["resources"][0]["owner"] == ""


async def test_a_surge_pod_of_the_same_release_serves_beside_the_old_one(
    root: Path, settings: Settings, tmp_path: Path
) -> None:
    async with Kubelet(root, KubeletSettings(version="1.37", timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        await ready(await started(stack, own(settings, tmp_path, "fleet/gpus", "pod-1"), 4))
        await ready(await started(stack, own(settings, tmp_path, "fleet/gpus", "pod-2"), 4))
        await kubelet.allocatable(RESOURCE, 4)
        other = await started(stack, own(settings, tmp_path, "fleet/gpus/canary", "pod-3"), 4)
        await other.changed.until(lambda: other.resource(RESOURCE).ownership.owner.value)


async def test_a_daemon_that_cannot_use_the_lock_serves_all_the_same(
    root: Path, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "owners").touch()  # no directory
    settings = replace(settings, node_dir=tmp_path / "node")
    async with Kubelet(root, KubeletSettings(timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        await started(stack, settings, 4)
        await kubelet.allocatable(RESOURCE, 4)


async def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = owner_file(tmp_path, RESOURCE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"taken\n"
    lock = OwnerLock(path, Owner("fleet/second", "boot", pid=2))
    assert lock.take() == Owner("fleet/first", "boot", pid=1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert lock.take() is None
    lock.close()


def test_two_processes_of_one_release_share_only_as_two_pods(tmp_path: Path) -> None:
    path = owner_file(tmp_path, RESOURCE)
    first = OwnerLock(path, Owner("a/b", "boot", "uid-1"))
    assert first.take() is None
    for refused in (
        Owner("a/b", "boot", "uid-1", 7),
        Owner("a/b", "boot", "", 7),
        Owner("a/c", "boot", "uid-2"),
        Owner("a/b", "other boot", "uid-2"),
    ):
        assert OwnerLock(path, refused).take() == Owner("a/b", "boot", "uid-1")
    successor = OwnerLock(path, Owner("a/b", "boot", "uid-2"))
    assert successor.take() is None
    first.close()
    foreign = OwnerLock(path, Owner("a/c", "boot", "uid-3"))
    assert foreign.take() is not None  # the successor has it
    successor.close()
    assert foreign.take() is None
    foreign.close()


def test_resources_of_any_length_have_locks_of_their_own(tmp_path: Path) -> None:
    names = {owner_file(tmp_path, f"{'a' * 240}.com/{'b' * 60}{last}").name for last in "xyz"}
    assert len(names) == 3
    assert max(map(len, names)) <= 255
