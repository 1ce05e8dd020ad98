"""The kubelet restarts, misbehaves, or loses its directory and its records."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from chaos.daemon import Launch
from chaos.experiment import NOT_ASKED, Cell, Experiment, Fault, Plan, Row, lost_cell
from chaos.node import FACTS
from chaos.rig import Rig, emulated_rig

from plugwright.system.concurrency import cancel

__all__ = ["EXPERIMENTS", "FAULTS", "replaced_directory"]

_FULL, _QUICK = 10_000, 60
_REGISTERED_LIMIT = 5.0
_LEAST_HOSTILE = 0.5  # seconds of each hostile kubelet
_SETTINGS_FRAME = b"\0\0\0\x04\0\0\0\0\0"


async def _restarts(plan: Plan) -> Row:
    """Killed and started again and again; at each, every resource must be registered with its whole list."""
    count, seconds, failed = plan.choose(_FULL, _QUICK), list[float](), list[str]()
    async with emulated_rig() as rig:
        for _ in range(count // 10):  # until memory that grows once has grown
            await _restart(rig)
        await rig.recovery(_REGISTERED_LIMIT)
        before = await rig.baseline()
        for number in range(count):
            await _restart(rig)
            began = time.monotonic()
            taken, complaint = await _registered(rig)
            seconds.append(time.monotonic() - began if complaint else taken)
            failed += [f"restart {number}: {complaint}"] if complaint else []
            if number % 100 == 0 and (refused := await rig.kubelet.pass_through()):
                failed.append(f"restart {number}: a pod is refused: {refused}")
        _, complaint = await rig.recovery(_REGISTERED_LIMIT)
        failed += [complaint] if complaint else []
        lost = await lost_cell(rig, before)
        grown = rig.daemon.footprint().rss_mib - before.footprint.rss_mib
    seconds.sort()
    figures = f"{count:,} times: median {seconds[len(seconds) // 2] * 1000:.0f} ms, longest {seconds[-1] * 1000:.0f} ms"
    recovered = Cell("; ".join(failed[:3]) if failed else figures, not failed)
    lost = Cell(f"nothing, {grown:+.1f} MiB", holds=True) if lost.holds else lost
    return Row("restarts", _TITLE_RESTARTS, NOT_ASKED, NOT_ASKED, recovered, lost)


async def _restart(rig: Rig) -> None:
    await rig.kubelet.stop()
    await rig.kubelet.start()


async def _registered(rig: Rig) -> tuple[float, str]:
    """The seconds until the kubelet has the whole list of every resource, and what it lacks beyond the limit."""
    began = time.monotonic()
    while time.monotonic() - began < _REGISTERED_LIMIT:
        missing = [
            name for name, ids in rig.devices.items() if (ids - {rig.cordoned}) - await rig.kubelet.healthy(name)
        ]
        if not missing:
            return time.monotonic() - began, ""
        await asyncio.sleep(0.002)
    return _REGISTERED_LIMIT, f"{', '.join(missing)} not registered within {_REGISTERED_LIMIT:g} s"


@asynccontextmanager
async def replaced_directory(rig: Rig) -> AsyncIterator[None]:
    """Removed and made anew, as `kubeadm reset` and `join` do; the kubelet's own checkpoint is kept."""
    directory = rig.node.paths.device_plugins
    await rig.kubelet.stop()
    checkpoint = rig.node.paths.checkpoint
    content = checkpoint.read_bytes() if checkpoint.exists() else b""
    removed = directory.rename(directory.with_name("removed"))  # first: the daemon would make sockets in it meanwhile
    shutil.rmtree(removed)
    try:
        yield
    finally:
        directory.mkdir(exist_ok=True)
        if content:
            checkpoint.write_bytes(content)
        await rig.kubelet.start()


async def _replaced_under_mount(_: Plan) -> Row:
    """In a container the old directory stays mounted: only a restart of the container brings the new one."""
    inside = "m"
    mounting = 'mkdir -p "$0"; mount --rbind "$1" "$0"; shift; exec "$@"'
    within = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        mounting,
        f"{{root}}/{inside}/device-plugins",
        "{root}/k/device-plugins",
    )
    async with emulated_rig(Launch(within=within), kubelet_dir_inside=inside) as rig:
        async with replaced_directory(rig):
            pass
        began = time.monotonic()
        ended = await rig.daemon.ended(_REGISTERED_LIMIT)
        taken, code = time.monotonic() - began, rig.daemon.code
        said = any("was deleted" in line for line in rig.daemon.lines()[-5:])
        if ended:
            await rig.daemon.stop()
            rig.daemon.start()
        complaint = (await rig.recovery(15))[1]
    text = (
        f"exited with code {code} after {taken:.1f} s, and recovered after a restart"
        if ended
        else f"still there; {complaint}"
    )
    holds = ended and code == 1 and said and not complaint
    recovered = Cell(text if said or not ended else f"{text}, without a word", holds)
    return Row("mount", _TITLE_MOUNT, NOT_ASKED, NOT_ASKED, recovered, NOT_ASKED)


@asynccontextmanager
async def _hostile_kubelet(rig: Rig) -> AsyncIterator[None]:
    """A hostile peer on kubelet.sock: it hangs, disconnects or sends garbage, at once or after a valid beginning."""
    await rig.kubelet.stop()
    task = asyncio.create_task(_be_hostile(rig.node.paths.kubelet_socket))
    try:
        yield
    finally:
        await cancel(task)
        await rig.kubelet.start()


async def _be_hostile(path: Path) -> None:
    speeches: list[bytes | None] = [None, b"", os.urandom(4096), _SETTINGS_FRAME + os.urandom(4096)]
    while True:
        for speech in speeches:
            async with _listening(path, lambda writer, speech=speech: _speak(writer, speech)):  # type: ignore[misc]
                await asyncio.sleep(_LEAST_HOSTILE)


async def _speak(writer: asyncio.StreamWriter, speech: bytes | None) -> None:
    try:
        if speech is None:
            await asyncio.Event().wait()
        with suppress(ConnectionError):
            writer.write(speech or b"")
            await writer.drain()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def _listening(path: Path, speak: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[None]:
    tasks: set[asyncio.Task[None]] = set()

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await speak(writer)
        tasks.discard(task)

    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        server = await asyncio.start_unix_server(connected, sock=listening)
        try:
            yield
        finally:
            server.close()
            await cancel(*tasks)
            path.unlink(missing_ok=True)


@asynccontextmanager
async def _unreadable_records(rig: Rig) -> AsyncIterator[None]:
    """A checkpoint of nonsense and a pod-resources socket that talks it, while a device is pulled out.

    Nobody can say whether a pod holds the device: so it must stay listed, as Unhealthy.
    """
    checkpoint, pods = rig.node.paths.checkpoint, rig.node.paths.pod_resources_socket
    content = checkpoint.read_bytes()
    real = pods.with_name("real.sock")
    pods.rename(real)
    pulled = min(rig.devices[FACTS])
    task = asyncio.create_task(_scribble(checkpoint))
    try:
        async with _listening(pods, lambda writer: _speak(writer, os.urandom(4096))):
            await _mock(rig, "remove", pulled)
            yield
            status = await rig.daemon.status()
            listed = {
                device["id"] for found in (status or {"resources": []})["resources"] for device in found["devices"]
            }
            rig.broken += [] if pulled in listed else [f"{pulled} was dropped though a pod may hold it"]
    finally:
        await cancel(task)
        checkpoint.write_bytes(content)
        real.rename(pods)
        await _mock(rig, "add", pulled)


async def _scribble(checkpoint: Path) -> None:
    """Again and again: the kubelet writes its own."""
    while True:
        for nonsense in (b"", b"{}", b'{"Data":{"PodDeviceEntries":7}}', os.urandom(2000), b"[" * 50_000):
            checkpoint.write_bytes(nonsense)
            await asyncio.sleep(0.02)


async def _mock(rig: Rig, name: str, device_id: str) -> None:
    await rig.daemon.ask({"do": "plugin", "resource": FACTS, "name": name, "arguments": {"id": device_id}})


def _needs_root() -> str:
    return "needs root" if os.getuid() else ""


_TITLE_RESTARTS = "the kubelet is killed and started again"
_TITLE_MOUNT = "the kubelet's directory is replaced under a container's mount"
FAULTS = (
    Fault("directory", "the kubelet's directory is replaced", replaced_directory, serves=False, truthful=False),
    Fault("hostile-kubelet", "the peer on kubelet.sock sends garbage, hangs or disconnects", _hostile_kubelet, 10,
          4, serves=False, truthful=False, on_real_kubelet=False),
    Fault("records", "the kubelet's checkpoint and pod-resources are garbage", _unreadable_records,
          on_real_kubelet=False),
)  # fmt: skip
EXPERIMENTS = (
    Experiment("restarts", _TITLE_RESTARTS, _restarts, limit=7200),
    Experiment("mount", _TITLE_MOUNT, _replaced_under_mount, _needs_root),
)
