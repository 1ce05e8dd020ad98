"""Oversized answers, files and events: the daemon refuses each, and its memory stays within 20 MiB of idle."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio  # type: ignore[import-untyped]
from chaos.daemon import Launch
from chaos.experiment import NOT_ASKED, Cell, Experiment, Fault, Plan, Row, lost_cell, observe
from chaos.node import FACTS
from chaos.rig import Baseline, Rig, emulated_rig

from plugwright.system.concurrency import cancel

__all__ = ["EXPERIMENTS", "FAULTS"]

_GROWTH = 20.0  # MiB that an attack may cost at its peak
_PATIENCE = 10.0  # seconds
_IDLE = 8  # threads of the pool, and connections
_HUGE = 300 * 2**20  # bytes; a file of so many has no block on disk
_MESSAGE = 64 * 2**20  # bytes of a reply, far beyond what a kubelet sends
_NODE, _DRIVER = "node", "tape.example.com"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_PIECE = b" " * 2**16

Answer = Callable[[asyncio.StreamWriter, str], Awaitable[bool]]


@asynccontextmanager
async def _little_memory(rig: Rig) -> AsyncIterator[None]:
    """Compares the most memory inside with what the daemon had before."""
    idle = rig.daemon.footprint().rss_mib
    rig.daemon.forget_peak()
    yield
    grown = rig.daemon.peak_mib() - idle
    rig.broken += [f"{grown:.0f} MiB more at the peak"] if grown > _GROWTH else []
    rig.notes.append(f"{grown:+.0f} MiB at the peak")


@asynccontextmanager
async def _answering(rig: Rig, path: Path, reply: bytes) -> AsyncIterator[asyncio.Event]:
    """A gRPC server that has the same reply to every call, and the event of the first call."""
    asked = asyncio.Event()

    async def answer(request: bytes, _: object) -> bytes:
        asked.set()
        return reply

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: object) -> object:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((Handler(),))
    path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield asked
    finally:
        await server.stop(0)
        path.unlink(missing_ok=True)
        rig.broken += [] if asked.is_set() else ["the daemon never asked"]


@asynccontextmanager
async def _register(rig: Rig) -> AsyncIterator[None]:
    await rig.kubelet.stop()
    try:
        async with _little_memory(rig), _answering(rig, rig.node.paths.kubelet_socket, bytes(_MESSAGE)):
            yield
    finally:
        await rig.kubelet.start()


@asynccontextmanager
async def _pod_resources(rig: Rig) -> AsyncIterator[None]:
    """Asked for the report of the node: it names the pods that hold devices."""
    pods, removed = rig.node.paths.pod_resources_socket, min(rig.devices[FACTS])
    real = pods.with_name("real.sock")
    pods.rename(real)
    try:
        async with _little_memory(rig), _answering(rig, pods, bytes(_MESSAGE)) as asked:
            await _mock(rig, "remove", removed)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    while not asked.is_set():
                        await rig.daemon.ask({"do": "report"}, _PATIENCE)
            yield
    finally:
        real.rename(pods)
        await _mock(rig, "add", removed)


@asynccontextmanager
async def _checkpoint(rig: Rig) -> AsyncIterator[None]:
    checkpoint, removed = rig.node.paths.checkpoint, min(rig.devices[FACTS])
    content = checkpoint.read_bytes()
    async with _little_memory(rig):
        try:
            checkpoint.unlink()
            checkpoint.symlink_to("/dev/zero")
            await _mock(rig, "remove", removed)
            await asyncio.sleep(0.3)
            _make_huge(checkpoint)
            yield
        finally:
            checkpoint.unlink()
            checkpoint.write_bytes(content)
            await _mock(rig, "add", removed)


async def _mock(rig: Rig, name: str, device_id: str) -> None:
    await rig.daemon.ask({"do": "plugin", "resource": FACTS, "name": name, "arguments": {"id": device_id}}, 10)


def _make_huge(path: Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(_HUGE)


async def _state_files(_: Plan) -> Row:
    """Of each state file a huge one is there when the daemon starts; with the old ones it is well again."""
    async with emulated_rig() as rig:
        before = await rig.baseline()
        await rig.daemon.stop()
        rig.daemon.start()
        await rig.until("the daemon is well", rig.is_well, 60)
        usual = rig.daemon.peak_mib()
        await rig.daemon.stop()
        files = {path: path.read_bytes() for path in rig.node.state.rglob("*") if path.is_file()}
        for path in files:
            _make_huge(path)
        rig.daemon.start()
        await rig.until("the daemon answers", lambda: _answers(rig), 60)
        await asyncio.sleep(2)  # files are read again
        grown = rig.daemon.peak_mib() - usual
        await rig.daemon.stop()
        for path, content in files.items():
            path.write_bytes(content)
            path.with_name(f"{path.name}.damaged").unlink(missing_ok=True)
        rig.daemon.start()
        complaint = (await rig.recovery(15))[1]
        text = f"{grown:+.0f} MiB at the peak; {len(files)} files"
        lost = await lost_cell(rig, before)
    lost = Cell(f"{lost.text}; {text}", lost.holds and grown <= _GROWTH)
    return Row("huge-state", _STATE, NOT_ASKED, NOT_ASKED, Cell(complaint or "once restarted", not complaint), lost)


async def _answers(rig: Rig) -> bool:
    return await rig.daemon.status() is not None


class _Server:
    """Enough of an API server for a driver without claims; `attack` answers in its place, if it does."""

    def __init__(self) -> None:
        self.attack: Answer | None = None
        self.written = asyncio.Event()
        self.attacked = 0
        self._writers: dict[asyncio.StreamWriter, asyncio.Task[object]] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers[writer] = task
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    await self._answer(head.decode(), reader, writer)
        finally:
            self._writers.pop(writer)
            writer.transport.abort()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def end(self) -> None:
        await cancel(*self._writers.values())

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split(maxsplit=2)
        sizes = [line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        parts = urlsplit(target)
        is_watch = "watch=true" in parts.query
        if self.attack is not None and parts.path == _SLICES and method == "GET":
            self.attacked += 1
            if await self.attack(writer, "watch" if is_watch else "list"):
                return
        if is_watch:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await reader.read()  # nothing comes until the client has closed the connection
            raise ConnectionResetError
        await _send(writer, self._document(method, parts.path, body))

    def _document(self, method: str, path: str, body: bytes) -> object:
        if method == "POST":
            self.written.set()
            made = json.loads(body)
            name = made["metadata"].get("name") or f"{made['metadata'].get('generateName', '')}1"
            return {**made, "metadata": {**made["metadata"], "name": name, "uid": "1", "resourceVersion": "2"}}
        if path == _SLICES:
            return {"kind": "ResourceSliceList", "metadata": {"resourceVersion": "1"}, "items": []}
        return {"kind": "Node", "metadata": {"name": path.rpartition("/")[2], "uid": "1"}}


async def _send(writer: asyncio.StreamWriter, document: object) -> None:
    text = json.dumps(document).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    await writer.drain()


async def _announced_list(writer: asyncio.StreamWriter, kind: str) -> bool:
    if kind == "list":
        await _pour(writer, b"Content-Length: %d\r\n\r\n" % _HUGE, chunked=False)
    return kind == "list"


async def _endless_list(writer: asyncio.StreamWriter, kind: str) -> bool:
    if kind == "list":
        await _pour(writer, b"Transfer-Encoding: chunked\r\n\r\n")
    return kind == "list"


async def _list_of_nothings(writer: asyncio.StreamWriter, kind: str) -> bool:
    """Within the limit of bytes, but each three of them are an object."""
    if kind == "list":
        text = b'{"items":[' + b"[]," * 1_000_000 + b"[]]}"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
    return kind == "list"


async def _endless_change(writer: asyncio.StreamWriter, kind: str) -> bool:
    if kind == "watch":
        await _pour(writer, b"Transfer-Encoding: chunked\r\n\r\n")
    return kind == "watch"


async def _pour(writer: asyncio.StreamWriter, head: bytes, *, chunked: bool = True) -> None:
    """Spaces, as JSON allows them anywhere, until the client has enough."""
    writer.write(b"HTTP/1.1 200 OK\r\n" + head)
    for _ in range(_HUGE // len(_PIECE)):
        writer.write(b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE) if chunked else _PIECE)
        await writer.drain()


def _from_api_server(name: str, title: str, attack: Answer) -> Experiment:
    """A resource is served by claims, and its API server turns on its driver."""
    title = f"the API server sends {title}"

    async def run(plan: Plan) -> Row:
        async with emulated_rig(_BY_CLAIMS) as rig, _api_server(rig) as server:

            @asynccontextmanager
            async def inject(_: Rig) -> AsyncIterator[None]:
                async with _little_memory(rig):
                    server.attack = attack
                    server.hang_up()
                    yield
                server.attack = None
                server.hang_up()
                rig.broken += [] if server.attacked else ["the driver never asked"]

            await rig.until("the driver is ready", rig.is_well, 30)
            fault = Fault(name, title, inject, recovers=30)
            return await observe(fault, rig, plan.choose(10, 3), before=_with_pools(await rig.baseline()))

    return Experiment(name, title, run)


def _with_pools(before: Baseline) -> Baseline:
    """An attack leaves idle threads and a connection in their pools, and as much memory as it may cost."""
    had = before.footprint
    footprint = replace(had, threads=had.threads + _IDLE, descriptors=had.descriptors + Counter(socket=_IDLE))
    return replace(before, footprint=footprint, rss_limit=_GROWTH)


@asynccontextmanager
async def _api_server(rig: Rig) -> AsyncIterator[_Server]:
    """Of a daemon that serves one resource more, by claims."""
    server = _Server()
    serving = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=2**20)
    (rig.node.root / "kubeconfig").write_text(_kubeconfig(serving.sockets[0].getsockname()[1]))
    rig.node.configure([{"name": "example.com/tape", "mock": {"count": 2}, "serve": "dra"}])
    try:
        async with asyncio.timeout(30):
            await server.written.wait()
        yield server
    finally:
        serving.close()
        await server.end()


def _kubeconfig(port: int) -> str:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    return json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})


_BY_CLAIMS = Launch(environment={"KUBECONFIG": "{root}/kubeconfig", "NODE_NAME": _NODE})


def _fault(name: str, title: str, inject: Callable[[Rig], object], *, serves: bool = True) -> Fault:
    return Fault(f"huge-{name}", title, inject, 5, 2, serves=serves, truthful=serves,  # type: ignore[arg-type]
                 in_soak=False, on_real_kubelet=False)  # fmt: skip


_STATE = "state files of 300 MiB"
FAULTS = (
    _fault("register", "the reply to Register has 64 MiB", _register, serves=False),
    _fault("pods", "pod-resources replies with 64 MiB", _pod_resources),
    _fault("checkpoint", "the kubelet's checkpoint is /dev/zero, then has 300 MiB", _checkpoint),
)
EXPERIMENTS = (
    Experiment("huge-state", _STATE, _state_files),
    _from_api_server("api-announced", "a list of 300 MiB", _announced_list),
    _from_api_server("api-endless", "a list without an end", _endless_list),
    _from_api_server("api-nothings", "a list of a million empty lists", _list_of_nothings),
    _from_api_server("api-change", "a change in a watch without an end", _endless_change),
)
