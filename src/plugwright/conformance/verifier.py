"""The verifier: the sessions that rules examine, shared if possible.

Most rules leave the plugin unchanged, so they share one session; a rule that ends the program, or must see its start,
opens its own. A program that crashed, stopped listening or lost its registration is restarted for the next rule.
"""

import asyncio
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from plugwright.conformance import program, session
from plugwright.conformance.program import Ending, Program, Target
from plugwright.conformance.session import RegisteredPlugin, Session, TimeLimits
from plugwright.errors import ConfigError, PeerRefused, PluginNotRunning, PlugwrightError, RuleNotApplicable
from plugwright.kubelet.versions import DEFAULT_VERSION
from plugwright.system import processes

__all__ = ["Verifier", "VerifyOptions"]

T = TypeVar("T")
_TRIES = 2  # consecutive starts that can fail before the other rules are abandoned
_LOOK = 0.05  # seconds between two checks of a plugin that could return


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`fail` and `recover` are commands that make a device fail and recover; `{id}` and `{resource}` name it.

    `directory` is the kubelet's root, for a running program. Device nodes and mounts are searched under `host_root`,
    CDI names in `cdi_dirs`. With `dra` the program is a DRA driver, and `parameters` are the opaque parameters of each
    claim. Up to `instances` of the program can run at a time.
    """

    version: str = DEFAULT_VERSION
    limits: TimeLimits = field(default_factory=TimeLimits)
    fail: str = ""
    recover: str = ""
    thorough: bool = False
    directory: Path | None = None
    host_root: Path = Path("/")
    cdi_dirs: Sequence[Path] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    dra: bool = False
    parameters: Mapping[str, object] | None = None
    instances: int = 4


class Verifier:
    """`async with Verifier(target, options) as verifier:`; leaving ends every session."""

    def __init__(self, target: Target, options: VerifyOptions) -> None:
        self.target = target
        self.options = options
        self.limits = options.limits
        self.current: Session | None = None  # the last used session, for the calls of a verdict
        self.emptied: Session | None = None  # the session that has lost its healthy devices: no rule waits again
        self.failure = ""  # why the last start failed
        self.resources: frozenset[str] = frozenset()
        self.settled = 0  # number of events when the shared session had started
        self.examined: Counter[str] = Counter()  # items examined by the rule so far, by kind
        self._remembered: dict[object, object] = {}
        self._stack = AsyncExitStack()
        self._shared: Session | None = None
        self._watched: list[Program] = []  # programs of the shared sessions whose end was not queried yet
        self._failures = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def another(self) -> Self:
        """A verifier of the same program, which expects the same resources."""
        made = type(self)(self.target, self.options)
        made.resources = self.resources
        return made

    async def reset(self) -> None:
        """Ends every session and forgets all observations; the resources stay."""
        await self._stack.aclose()
        self.current = self._shared = None
        self.failure, self._failures = "", 0
        self._remembered.clear()
        self._watched.clear()

    async def renew(self) -> None:
        """Ends the shared session, so that the next rule gets a new program; an attached one stays."""
        if not self.target.attached:
            await self._stack.aclose()
            self._shared = None

    async def started(self) -> Session:
        """The shared session at its start, whether the plugin is registered or not."""
        if self._shared is None:
            await self._open()
        assert self._shared is not None
        self.current = self._shared
        return self._shared

    async def running(self) -> Session:
        """The shared session with the plugin registered; raises PluginNotRunning if that is impossible."""
        shared = await self.started()
        if self.failure or await self._problem(shared):
            await self._recover()
        assert self._shared is not None
        self.current = self._shared
        return self._shared

    async def _recover(self) -> None:
        if self._failures >= _TRIES or (self.failure and not self.resources):
            raise PluginNotRunning(f"the plugin is not registered: {self.failure or 'it went away'}")
        if self.target.attached:
            assert self._shared is not None
            if not await self._comes_back(self._shared, self.limits.register):
                self._failures = _TRIES
                raise PluginNotRunning(f"the plugin is not registered: {await self._problem(self._shared)}")
            return
        await self._open()
        if self.failure:
            raise PluginNotRunning(f"the plugin could not be started again: {self.failure}")

    async def plugins(self) -> list[RegisteredPlugin]:
        return (await self.running()).plugins()

    async def _problem(self, shared: Session) -> str:
        """Why the program cannot be called, or empty: it must run, be registered and listen."""
        if not self.target.attached and not shared.program.running:
            return shared.program.ending
        if missing := self.resources - self._connected(shared):
            return f"{', '.join(sorted(missing))} is no longer registered"
        return await self._silence(shared)

    async def _silence(self, shared: Session) -> str:
        """The plugins that do not respond on a separate connection; an error is a response."""
        for plugin in shared.plugins():
            try:
                async with plugin.connect() as client:
                    await client.options(self.limits.call)
            except PeerRefused:
                continue
            except PlugwrightError as error:
                return f"GetDevicePluginOptions of {plugin.resource} was answered {str(error)!r}"
        return ""

    async def comes_back(self) -> bool:
        """Whether the shared program is registered and listens within the time of a call."""
        return await self._comes_back(await self.started(), self.limits.call)

    async def _comes_back(self, shared: Session, limit: float) -> bool:
        """Whether a running program is registered and listens within `limit` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while await self._problem(shared):
                    if not self.target.attached and not shared.program.running:
                        return False
                    await asyncio.sleep(_LOOK)
                return True
        return False

    def _connected(self, shared: Session) -> set[str]:
        return {plugin.resource for plugin in shared.plugins()}

    async def ended(self, *, patient: bool) -> Ending | None:
        """How a shared program crashed or stopped listening since the last call, or None.

        A `patient` caller lets a running program register again first.
        """
        crashed = next((program for program in self._watched if program.crashed), None)
        if crashed is not None:
            self._watched.remove(crashed)
            return crashed.how_ended
        shared = self._shared
        if shared is None or self.failure or self.current is not shared or not await self._stopped(shared):
            return None
        if patient and await self._comes_back(shared, self.limits.call):
            return None
        if shared.programs and not shared.program.running:
            await shared.program.ends()  # the status is known before the loop reports the end and the last output
            return shared.program.how_ended if shared.program.crashed else None
        lines = shared.program.how_ended.lines if shared.programs else ()
        return Ending(f"the program runs, but {await self._problem(shared)}", lines, "stopped listening")

    async def _stopped(self, shared: Session) -> bool:
        """Whether the program has a problem: its listener can still be closing when it answers the first probe."""
        return bool(await self._problem(shared) or await self._problem(shared))

    def last_crash(self) -> Ending | None:
        """How a program of the last used session ended without a request."""
        programs = self.current.programs if self.current else []
        return next((program.how_ended for program in reversed(programs) if program.crashed), None)

    def examine(self, items: Iterable[T], what: str) -> list[T]:
        """The items that a rule examines; a rule that examined none of any kind is not applicable."""
        found = list(items)
        self.examined[what] += len(found)
        return found

    def nothing_examined(self) -> str:
        """Why the rule proves nothing: all examined collections were empty."""
        if not self.examined or any(self.examined.values()):
            return ""
        return f"there is no {' and no '.join(self.examined)}"

    async def _open(self) -> None:
        await self._stack.aclose()
        self._shared = await self._stack.enter_async_context(self._session())
        try:
            if not self.target.attached:
                self._watched.append(await self._shared.start_program())
            await self._shared.until_registered(self.resources, limit=self.limits.start)
            await self._shared.settle()
        except PluginNotRunning as error:
            self.failure, self._failures = str(error), self._failures + 1
            return
        finally:
            self.settled = self._shared.mark
        self.failure, self._failures = "", 0
        self.resources = self.resources or frozenset(self._connected(self._shared))

    @asynccontextmanager
    async def fresh(self, *, registers: bool = True) -> AsyncIterator[Session]:
        """A separate session with the program not started yet, which must be one that `registers`, or any."""
        if self.target.attached:
            raise RuleNotApplicable("an attached program is started and ended by its owner")
        if not self.resources:
            await self.started()
        if registers and not self.resources:
            raise PluginNotRunning(f"the plugin is not registered: {self.failure}")
        await self._stack.aclose()  # two instances could need the same port or lock
        self._shared = None
        async with self._session() as own:
            self.current = own
            yield own

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        options = self.options
        async with session.session(self.target, options.version, self.limits, options.directory) as opened:
            yield opened

    async def remembered(self, observe: Callable[["Verifier"], Awaitable[T]]) -> T:
        """The result or exception of `observe`, called once."""
        if observe not in self._remembered:
            try:
                self._remembered[observe] = await observe(self)
            except PlugwrightError as error:
                self._remembered[observe] = error
        result = self._remembered[observe]
        if isinstance(result, PlugwrightError):
            raise result
        return cast("T", result)

    @property
    def cdi_dirs(self) -> list[Path]:
        """The directories of CDI specs on this machine that a runtime of the program's node would read."""
        assert self.current is not None
        return list(dict.fromkeys([*map(self.current.on_host, self.options.cdi_dirs), self.current.cdi]))

    def on_host(self, path: str) -> Path:
        """The file on this machine behind a path of the program's node."""
        assert self.current is not None
        seen = self.current.on_host(Path(path))
        is_own = seen.is_relative_to(self.current.paths.root)  # the session's directories are those of every program
        return seen if is_own or str(seen) != path else self.options.host_root / path.lstrip("/")

    async def run_command(self, command: str, device_id: str, resource: str) -> None:
        """Runs the operator's command for one device; ConfigError if it fails."""
        assert self.current is not None
        text = program.fill_in(command, self.current.paths)
        text = text.replace("{id}", shlex.quote(device_id)).replace("{resource}", shlex.quote(resource))
        async with asyncio.timeout(self.limits.start):
            code, output = await processes.run(["sh", "-c", text])
        if code:
            raise ConfigError(f"`{text:.100}` ended with status {code}: {output.strip()[-100:]}")

    async def is_alive(self) -> str:
        """Empty if the plugin responds on a separate connection; otherwise the problem."""
        shared = self.current
        assert shared is not None
        if shared.programs and not shared.program.running:
            return shared.program.ending
        for plugin in shared.plugins():
            try:
                async with plugin.connect() as client:
                    await client.options(self.limits.call)
            except PlugwrightError as error:
                return f"GetDevicePluginOptions of {plugin.resource} was answered {str(error)!r}"
        return "" if shared.plugins() else "no resource is connected"
