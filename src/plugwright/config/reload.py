"""The configuration in force while its file and the machine change.

An invalid version of the file, or one that the daemon cannot apply, is rejected as a whole: the previous version stays
in force (at a start, that of `last_good`), and `status`, `/readyz` and the metrics show the reason. All exceptions end
here, because they must not end the daemon. `file_changes` detects changes of the file, `template_names` finds the names
that depend on the machine.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.config import schema
from plugwright.config.file_changes import file_changes
from plugwright.config.last_good import LastGoodFile
from plugwright.config.schema import Config
from plugwright.config.template_names import TemplateNames
from plugwright.errors import CallTimedOut, CallUnfinished, ConfigError, PlugwrightError
from plugwright.sdk.cordons import CordonRule
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.status import ConfigState, RefusedConfig
from plugwright.system.blocking import BlockingCalls, call_within
from plugwright.system.concurrency import Backoff, in_thread, single_error
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["CurrentConfig", "DaemonConfig", "replace_plugins"]

logger = logging.getLogger(__name__)

_READ_LIMIT = 10.0  # seconds; a file system that does not answer keeps nothing else waiting for longer

Apply = Callable[[Config], Awaitable[Mapping[str, str]]]
"""Makes a version take effect; returns the names that it leaves out, with the reasons. Raises and changes nothing."""


class _Attempt(msgspec.Struct, frozen=True):
    """The file as it was read: valid, or with its error."""

    sha256: str
    config: Config | None
    error: Exception | None = None


class CurrentConfig:
    """`value` is the version of the file in force; `state` names it, and the newer version that was rejected.

    `state` starts as that of a file that has just been read, unless another is given.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        read_limit: float = _READ_LIMIT,
        state: ConfigState | None = None,
        read: Callable[[Path], bytes] = schema.read_bytes,
    ) -> None:
        self.value = config
        self.state = Latest(state or ConfigState(str(path), config.sha256, time.time()))
        self.reads = BlockingCalls("read of the configuration", read_limit, at_once=1)
        self._path, self._read_limit, self._read_file = path, read_limit, read
        refused = self.state.value.refused
        self._seen = config.sha256 if refused is None else refused.sha256  # of the version that was read last

    async def reload(self, apply: Apply) -> bool:
        """Reads the file again and applies it; returns whether it is in force now."""
        sha256 = ""
        try:
            attempt = await self._read()
            self._seen = sha256 = attempt.sha256
            if attempt.config is None:
                raise attempt.error or ConfigError(f"cannot read {self._path}")
            names = await apply(attempt.config)
        except Exception as error:  # noqa: BLE001  a supervision boundary: logged, counted, shown
            self._refuse(sha256, error)
            return False
        self.value = attempt.config
        self.accept(names)
        return True

    def accept(self, refused_names: Mapping[str, str]) -> None:
        """The version in force is the latest one."""
        state = self.state.value
        self.state.publish(ConfigState(state.path, self.value.sha256, time.time(), state.failures, None, refused_names))

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yields when the file has another content than when it was last read. Close it with `aclosing`."""
        async with aclosing(file_changes(self._path)) as changes:
            async for _ in changes:
                if await self._has_changed():
                    yield

    async def _has_changed(self) -> bool:
        try:
            return await self.reads.run(partial(_fingerprint, self._path, self._read_file)) != self._seen
        except CallUnfinished:
            return True  # the reload that follows reports the reason

    async def _read(self) -> _Attempt:
        """In one thread at most, however often it is tried while a file system does not answer."""
        try:
            return await self.reads.run(partial(_attempt, self._path, self._read_file))
        except CallUnfinished as error:
            self._seen = ""
            reason = f"no answer within {self._read_limit:g} s" if self.reads.hung.value else str(error)
            raise ConfigError(f"cannot read {self._path}: {reason}") from None

    def _refuse(self, sha256: str, error: Exception) -> None:
        text = _text(error)
        state = self.state.value
        refused = RefusedConfig(sha256, time.time(), text)
        before = state.refused
        if before is not None and (before.sha256, before.error) == (sha256, text):
            refused = before
        else:
            # For an unexpected error, the traceback is the only way to find its cause.
            cause = None if isinstance(error, PlugwrightError) else error
            logger.error(
                "new configuration rejected, the previous one stays",
                extra={"error": text, "sha256": sha256},
                exc_info=cause,
            )
        self.state.publish(replace(state, failures=state.failures + 1, refused=refused))


class DaemonConfig:
    """Keeps a daemon on the latest valid version of its file and on the names that match this machine.

    `plugins` are those served at the start. If the file is rejected then, its last good version in `state_dir` is used;
    if there is none, the error is raised.
    """

    def __init__(self, path: Path, state_dir: Path | None = None, read_limit: float = _READ_LIMIT) -> None:
        self._read_limit = read_limit
        self._last_good = LastGoodFile(state_dir, path)
        self._current = self._start(path)
        self._stack = AsyncExitStack()
        self._request_reload: Callable[[], None] = lambda: None

    @property
    def cordons(self) -> tuple[CordonRule, ...]:
        """The rules of the version in force."""
        return self._current.value.file.cordon_rules

    @property
    def state(self) -> ConfigState:
        return self._current.state.value

    def _start(self, path: Path) -> CurrentConfig:
        attempt = _attempt(path, partial(_read_at_start, self._read_limit))
        try:
            if attempt.config is None:
                raise attempt.error or ConfigError(f"cannot read {path}")
            self._make_plugins(attempt.config)
            config, state = attempt.config, ConfigState(str(path), attempt.sha256, time.time())
        except Exception as error:  # noqa: BLE001  raised again where there is no other version
            config, state = self._restore(path, attempt.sha256, error)
        names = self._names.current
        state = replace(state, refused_names=names.refused, unnamed=names.unnamed)
        return CurrentConfig(path, config, self._read_limit, state)

    def _make_plugins(self, config: Config) -> None:
        self._names = TemplateNames(config)
        self.plugins = self._names.current.config.plugins()
        self._names.join(self.plugins)

    def _restore(self, path: Path, sha256: str, error: Exception) -> tuple[Config, ConfigState]:
        try:
            kept = call_within("read of the last good version", self._read_limit, self._last_good.load)
        except (ConfigError, CallUnfinished) as unusable:
            raise ConfigError(f"{_text(error)}; its last good version cannot be used: {unusable}") from error
        if kept is None:
            raise error
        self._make_plugins(kept.config)
        refused = RefusedConfig(sha256, time.time(), _text(error))
        facts = {"error": refused.error, "sha256": sha256, "last_good": kept.config.sha256}
        cause = None if isinstance(error, PlugwrightError) else error
        logger.error("configuration rejected, the last valid one is active", extra=facts, exc_info=cause)
        return kept.config, ConfigState(
            str(path), kept.config.sha256, kept.loaded, failures=1, refused=refused, restored=True
        )

    @asynccontextmanager
    async def watching(self, daemon: Daemon, request_reload: Callable[[], None]) -> AsyncIterator[None]:
        """Requests a reload when the file changes or its templates match new names."""
        self._request_reload = request_reload
        self._current.state.subscribe(lambda: daemon.config.publish(self._current.state.value))
        self._current.reads.hung.subscribe(self._reload_when_read)
        daemon.config.publish(self._current.state.value)
        try:
            async with self._stack, asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(self._follow_file()), tasks.create_task(self._keep_last_good())]
                await self._names.follow(self._stack, request_reload)
                yield
                for task in following:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise single_error(group) from None

    def _reload_when_read(self) -> None:
        """A read that was given up has returned: the file system answers again."""
        if not self._current.reads.hung.value:
            self._request_reload()

    async def reload(self, daemon: Daemon) -> None:
        apply, state = partial(self._apply, daemon), self._current.state
        try:
            if not await self._current.reload(apply):
                names = await apply(self._current.value)  # its templates can match new names
                state.publish(replace(state.value, refused_names=names))
            state.publish_if_changed(replace(state.value, unnamed=self._names.current.unnamed))
            await self._names.follow(self._stack, self._request_reload)
        except Exception:
            logger.exception("new resource names rejected, the previous ones stay")

    async def _apply(self, daemon: Daemon, config: Config) -> Mapping[str, str]:
        before, new = self._names.current, self._names.expand(config)
        if new.config.file != before.config.file:
            plugins = new.config.plugins(before.config, daemon.plugins)
            self._names.join(plugins)
            await replace_plugins(daemon, plugins, new.config.file.cordon_rules)
            logger.info(
                "configuration reloaded", extra={"resources": sorted(daemon.resources), "sha256": config.sha256}
            )
        self._names.current = new
        return new.refused

    async def _keep_last_good(self) -> None:
        """Whenever another version is in force. A disk that hangs keeps nothing else waiting."""
        kept = None
        async for state in self._current.state.changes():
            config = self._current.value
            if config is not kept and not state.restored:
                try:
                    await in_thread("last good configuration", partial(self._last_good.save, config, state.loaded))
                    kept = config
                except RuntimeError as error:  # no thread could be started
                    logger.warning("last valid configuration not saved", extra={"error": clean(error)})

    async def _follow_file(self) -> None:
        backoff, problems = Backoff(first=1.0, longest=30.0), LogOnce(logger)
        while True:
            try:
                async with aclosing(self._current.changes()) as changes:
                    async for _ in changes:
                        backoff.reset()
                        self._request_reload()
            except Exception as error:
                if problems.is_news(repr(error)):
                    logger.exception("configuration file not watched, retrying")
            await asyncio.sleep(backoff.delay())


async def replace_plugins(daemon: Daemon, plugins: list[Plugin], cordons: Sequence[CordonRule] | None = None) -> None:
    """Serves `plugins`; if that fails, serves the previous plugins again."""
    before, rules = list(daemon.plugins.values()), daemon.cordons.rules
    try:
        await daemon.apply(plugins, cordons)
    except Exception:
        await daemon.apply(before, rules)
        raise


def _attempt(path: Path, read: Callable[[Path], bytes]) -> _Attempt:
    """Reads and checks the file; never raises, so that an error comes with the version that has it."""
    sha256 = ""
    try:
        content = read(path)
        sha256 = schema.digest(content)
        return _Attempt(sha256, schema.decode(path, content))
    except Exception as error:  # noqa: BLE001  raised again in the event loop
        return _Attempt(sha256, None, error)


def _text(error: Exception) -> str:
    return clean(error if isinstance(error, PlugwrightError) else f"{type(error).__name__}: {error}")


def _fingerprint(path: Path, read: Callable[[Path], bytes]) -> str:
    try:
        return schema.digest(read(path))
    except ConfigError:
        return ""  # as `_attempt` has it


def _read_at_start(limit: float, path: Path) -> bytes:
    """Applies the time limit of a running daemon, although there is no event loop yet."""
    try:
        return call_within("read of the configuration", limit, partial(schema.read_bytes, path))
    except CallTimedOut:
        raise ConfigError(f"cannot read {path}: no answer within {limit:g} s") from None
    except CallUnfinished as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
