"""Observations shared by several rules: a program's end and next start, refused registrations, idleness.

Each is made once per verifier, and remembered.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.conformance.dra.cdi_specs import cdi_devices
from plugwright.conformance.program import processor_demand
from plugwright.conformance.restarting import restart_kubelet, start_after_end
from plugwright.conformance.session import RegisterCall, Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PluginNotRunning, PlugwrightError
from plugwright.model import Options
from plugwright.protocol import messages
from plugwright.protocol.messages import AllocateResponse
from plugwright.system.concurrency import first

__all__ = [
    "FirstRestart",
    "Idleness",
    "KubeletView",
    "ProgramLife",
    "Refusals",
    "first_restart",
    "idleness",
    "newly_started",
    "program_life",
    "refusals",
]

_FOREIGN = ("foreign.sock", "notes.txt")
_REFUSED = 8  # maximum number of registrations
_ASKED, _REPEATED = 16, 4  # devices of a resource, asked for once and again

Answers = dict[tuple[str, str], AllocateResponse]  # by resource and id


@dataclass(frozen=True, slots=True)
class ProgramLife:
    """A program that was registered, got SIGTERM and was restarted; `again` is why it did not register then."""

    ended: bool
    returncode: int | None
    ending: str
    sockets_left: tuple[str, ...]
    processes_left: int
    foreign_gone: tuple[str, ...]
    ids: dict[str, set[str]]
    again: str
    ids_again: dict[str, set[str]]
    dropped: tuple[str, ...]  # devices missing in a list after SIGTERM
    paths_gone: tuple[str, ...]  # of answers to Allocate, missing after the end or the next start
    nodes: dict[tuple[str, str], set[str]]  # host paths by resource and id, of answers that are repeatable
    nodes_again: dict[tuple[str, str], set[str]]


async def program_life(verifier: Verifier) -> ProgramLife:
    async with verifier.fresh() as session:
        foreign = [Path(session.paths.device_plugins, name) for name in _FOREIGN]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(foreign[0]))
            listening.listen(1)
            foreign[1].touch()
            program = await session.start_program()
            await session.until_registered(verifier.resources, limit=verifier.limits.start)
            ids, served = _ids(session), [plugin.socket for plugin in session.plugins()]
            answers = await _answers(verifier, session, _ASKED)
            nodes = _same_nodes(answers, await _answers(verifier, session, _REPEATED))
            paths, mark = _existing_paths(verifier, answers.values()), session.mark
            ended = await program.stop(verifier.limits.end)
            lists = {event.about: {device.id for device in event.devices} for event in session.lists(mark)}
            dropped = [device_id for about, kept in lists.items() for device_id in sorted(ids.get(about, set()) - kept)]
            paths_gone = [path for path in paths if path not in _existing(verifier, paths)]
            left = tuple(path.name for path in served if path.exists())
            processes = len(program.processes())
            gone = tuple(path.name for path in foreign if not path.exists())
        await program.end()
        again = await _start_again(verifier, session)
        paths_gone += [path for path in paths if path not in _existing(verifier, paths)]
        ids_again = _ids(session)  # before further calls, which can end it
        answers_again = await _answers(verifier, session, _REPEATED) if nodes and not again else {}
        return ProgramLife(
            ended,
            program.returncode,
            program.ending,
            left,
            processes,
            gone,
            ids,
            again,
            ids_again,
            tuple(dropped),
            tuple(dict.fromkeys(paths_gone)),
            nodes,
            {known: _nodes(answer) for known, answer in answers_again.items()},
        )


async def _answers(verifier: Verifier, session: Session, count: int) -> Answers:
    """The answers to Allocate of single devices, at most `count` of each resource."""
    found: Answers = {}
    for plugin in session.plugins():
        for device_id in plugin.ids[:count]:
            with suppress(PlugwrightError, TimeoutError, ValueError):
                async with plugin.connect() as client, asyncio.timeout(verifier.limits.call):
                    [encoded] = await client.allocate_encoded([device_id])
                found[plugin.resource, device_id] = messages.decode(encoded)
    return found


def _nodes(answer: AllocateResponse) -> set[str]:
    return {node.host_path for node in answer.nodes}


def _same_nodes(answers: Answers, repeated: Answers) -> dict[tuple[str, str], set[str]]:
    """The nodes of devices that get the same ones in both answers."""
    return {
        known: _nodes(answer)
        for known, answer in answers.items()
        if known in repeated and _nodes(answer) == _nodes(repeated[known])
    }


def _existing_paths(verifier: Verifier, answers: Iterable[AllocateResponse]) -> list[str]:
    """Existing paths and CDI names on which stored answers depend."""
    found: list[str] = []
    for answer in answers:
        found += [mount.host_path for mount in answer.mounts] + [node.host_path for node in answer.nodes]
        found += answer.cdi
    existing = _existing(verifier, found)
    return [path for path in dict.fromkeys(found) if path in existing]


def _existing(verifier: Verifier, paths: Sequence[str]) -> set[str]:
    names = cdi_devices(verifier.cdi_dirs)
    return {path for path in paths if path in names or verifier.on_host(path).exists()}


async def _start_again(verifier: Verifier, session: Session) -> str:
    mark = session.mark
    await start_after_end(session)
    try:
        await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
    except PluginNotRunning as error:
        return str(error)
    return ""


def _ids(session: Session) -> dict[str, set[str]]:
    return {plugin.resource: {device.id for device in plugin.devices} for plugin in session.plugins()}


@dataclass(frozen=True, slots=True)
class KubeletView:
    """What the kubelet knows of each resource: its ids, those that are healthy, NUMA nodes and the options."""

    ids: dict[str, set[str]]
    healthy: set[tuple[str, str]]  # resource and id
    numa: dict[tuple[str, str], tuple[int, ...]]
    options: dict[str, Options]


@dataclass(frozen=True, slots=True)
class FirstRestart:
    """A program's state before and after its first restart of the kubelet."""

    before: KubeletView
    after: KubeletView
    first_lists: dict[str, set[str]]  # the ids in the first list of each resource after the restart


async def first_restart(verifier: Verifier) -> FirstRestart:
    """Of a new program: some tell the truth only once."""
    async with newly_started(verifier) as session:
        return await _restarted(verifier, session)


@asynccontextmanager
async def newly_started(verifier: Verifier) -> AsyncIterator[Session]:
    """A session of a new program, whose kubelet was never restarted; an attached program stays as it is."""
    if verifier.target.attached:
        yield await verifier.running()
        return
    async with verifier.fresh() as session:
        await session.start_program()
        await session.until_registered(verifier.resources, limit=verifier.limits.start)
        await session.settle()
        yield session


async def _restarted(verifier: Verifier, session: Session) -> FirstRestart:
    before, mark = _listing(session), session.mark
    await restart_kubelet(session)
    first_lists: dict[str, set[str]] = {}
    for event in session.lists(mark):
        first_lists.setdefault(event.about, {device.id for device in event.devices})
    with suppress(PeerGone):  # some check their devices again first
        await session.kubelet.until(lambda: _listing(session).healthy >= before.healthy, verifier.limits.prompt, "")
    return FirstRestart(before, _listing(session), first_lists)


def _listing(session: Session) -> KubeletView:
    plugins = session.plugins()
    healthy = {(plugin.resource, device_id) for plugin in plugins for device_id in plugin.ids}
    numa = {(plugin.resource, device.id): device.nodes or () for plugin in plugins for device in plugin.devices}
    return KubeletView(_ids(session), healthy, numa, {plugin.resource: plugin.options for plugin in plugins})


@dataclass(frozen=True, slots=True)
class Refusals:
    """The first registrations were refused; `failure` is why the plugin was not registered in the end."""

    registrations: tuple[RegisterCall, ...]
    failure: str
    exited: int | None  # the exit status


async def refusals(verifier: Verifier) -> Refusals:
    async with verifier.fresh() as session:

        def refuse(number: int) -> str:
            # Time-limited: a plugin that waits ten seconds after each refusal must not wait five times.
            waited = session.registrations[-1].at - session.registrations[0].at
            refused = number <= _REFUSED and waited < verifier.limits.quick
            return "not now, says plugwright verify" if refused else ""

        session.refuse = refuse
        program = await session.start_program()
        failure = ""
        try:
            await session.until_registered(limit=verifier.limits.start)
        except PluginNotRunning as error:
            failure = str(error)
        return Refusals(tuple(session.registrations), failure, program.returncode)


@dataclass(frozen=True, slots=True)
class Idleness:
    """Activity of an idle program, as rates per second."""

    seconds: float
    lists: dict[str, int]
    wake_ups: float
    cpu: float  # requested cores


async def idleness(verifier: Verifier) -> Idleness:
    session, seconds = await verifier.running(), verifier.limits.idle
    pids = session.program.processes() if session.programs else []
    mark, wake_ups, cpu = session.mark, _wake_ups(pids), processor_demand(pids)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # nothing is expected to happen
            await first(*([session.program.ends()] if session.programs else [asyncio.sleep(seconds)]))
    lists: dict[str, int] = {}
    for event in session.lists(mark):
        lists[event.about] = lists.get(event.about, 0) + 1
    return Idleness(seconds, lists, (_wake_ups(pids) - wake_ups) / seconds, (processor_demand(pids) - cpu) / seconds)


def _wake_ups(pids: list[int]) -> int:
    total = 0
    for status in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/status")):
        with suppress(OSError, StopIteration):
            lines = status.read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("voluntary_ctxt")).split()[1])
    return total
