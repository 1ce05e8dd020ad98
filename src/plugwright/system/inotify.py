"""Directories watched through one inotify instance per event loop.

inotify instances are scarce (Linux allows a user 128), and the kubelet, the container runtime and every plugin on the
node need some. So the first user of an event loop opens an instance, all others share it, and the last user closes it.
`Directory` follows one directory, which may not exist yet or may be replaced at any time; `WatchedDirectories` is a
changing set of them. If the kernel has no instance left, `Directory` polls every second, and both classes try to get an
instance at each poll.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from plugwright.system.inotify_api import Event, Inotify, Mask
from plugwright.system.latest import Signal

__all__ = ["Directory", "Identity", "WatchedDirectories", "nearest_directory", "settled_changes"]

logger = logging.getLogger(__name__)

_SELF = Mask.DELETE_SELF | Mask.MOVE_SELF
_ENTRIES = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | _SELF
_ENDED = Mask.IGNORED | Mask.MOVE_SELF  # a moved directory is no longer at the requested path
_POLL = 1.0  # seconds between two looks without inotify
_BATCH = 1000  # events handled before others have their turn on the loop

Identity = tuple[int, int]
Callback = Callable[[Event], object]


class Directory:
    """Files created, removed and renamed in one directory; with `writes` also files written and closed.

    Without `entries`, only moving or removing the directory itself counts. `changed` is notified after every possible
    change. `poll`: seconds between two polls without inotify.
    """

    def __init__(self, path: Path, writes: bool = False, entries: bool = True, poll: float = _POLL) -> None:
        self.path = path
        self.changed = Signal()
        self._poll_interval = poll
        self._mask = (_ENTRIES if entries else _SELF) | (Mask.CLOSE_WRITE if writes else Mask(0))
        self._created: dict[str, int] = {}  # how often each requested name has been created
        self._ctimes: dict[str, int] = {}  # of each requested name, at the last look
        self._instance: _Instance | None = None
        self._watched = path  # the directory itself, or the nearest of its parents that exists
        self._subscription: _Subscription | None = None
        self._polling: asyncio.TimerHandle | None = None

    def identity(self, name: str) -> Identity | None:
        """Differs once the file was created again, even with the same inode number; None if there is no file."""
        self._created.setdefault(name, 0)
        if self._instance is not None:
            self._instance.read_pending()  # else a creation that `stat` sees already would be counted later
        try:
            status = self.path.joinpath(name).stat()
        except OSError:
            return None
        changed = self._ctimes.get(name, status.st_ctime_ns) != status.st_ctime_ns
        self._ctimes[name] = status.st_ctime_ns
        if changed and self._polling is not None:  # no event counts it
            self._created[name] += 1
        return status.st_ino, self._created[name]

    async def appears(self, name: str) -> Identity:
        await self.changed.until(lambda: self.identity(name) is not None)
        return self.identity(name) or (0, 0)

    async def changes_from(self, name: str, identity: Identity | None) -> None:
        """Returns when the file exists and differs from `identity`."""
        await self.changed.until(lambda: self.has_changed_from(name, identity))

    def has_changed_from(self, name: str, identity: Identity | None) -> bool:
        return self.identity(name) not in (identity, None)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Notifies `changed` while inside."""
        try:
            self._begin()
        except OSError as error:
            self._poll_instead(error)
        try:
            yield
        finally:
            self._stop_polling()
            self._stop_following()

    def _begin(self) -> None:
        """Raises OSError if the kernel has no instance or no watch left."""
        self._instance = _shared_instance()
        try:
            self._follow(self._instance)
        except OSError:
            self._stop_following()
            raise

    def _follow(self, instance: "_Instance") -> None:
        """Watches the directory or its nearest parent, until no nearer parent has appeared meanwhile."""
        while True:
            path = nearest_directory(self.path)
            with suppress(FileNotFoundError, NotADirectoryError):  # removed since the line above
                before, self._subscription = self._subscription, instance.subscribe(path, self._mask, self._handle)
                self._watched = path
                if before is not None:
                    instance.unsubscribe(before)
                self.changed.notify()
                if path == nearest_directory(self.path):
                    return

    def _handle(self, event: Event) -> None:
        created = event.name if event.mask & (Mask.CREATE | Mask.MOVED_TO) else ""
        for name in self._created:
            if event.mask & Mask.Q_OVERFLOW or (created == name and self._watched == self.path):
                self._created[name] += 1
        if event.mask & _ENDED or self._watched != nearest_directory(self.path):
            self.watch_again()
        else:
            self.changed.notify()

    def watch_again(self) -> None:
        """The directory at the path has been replaced."""
        if self._instance is None:
            self.changed.notify()
            return
        try:
            self._follow(self._instance)
        except OSError as error:
            self._stop_following()
            self._poll_instead(error)

    def _poll_instead(self, error: OSError) -> None:
        logger.warning(
            "inotify unavailable, polling every second", extra={"directory": str(self.path), "error": str(error)}
        )
        self._look_later()
        self.changed.notify()

    def _look_later(self) -> None:
        self._polling = asyncio.get_running_loop().call_later(self._poll_interval, self._look)

    def _look(self) -> None:
        try:
            self._begin()
        except OSError:
            self._look_later()
        else:
            for name in self._created:
                self.identity(name)  # as the last look: files created before the watch cause no event
            self._stop_polling()
            logger.info("inotify is available again", extra={"directory": str(self.path)})
        self.changed.notify()

    def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None

    def _stop_following(self) -> None:
        if self._instance is not None:
            if self._subscription is not None:
                self._instance.unsubscribe(self._subscription)
            self._instance.leave()
        self._instance, self._subscription = None, None


class WatchedDirectories:
    """A changing set of directories; `changed` is called after each event in one of them.

    With `writes` also after a file in them was written. Do not use it for /dev: every write to a device would count.

    `problem` is why a directory is not watched. If the kernel has no instance or no watch left, the owner must poll,
    and `replace` tries again.
    """

    def __init__(self, changed: Callable[[], object], *, writes: bool = False) -> None:
        self.problem = ""
        self._changed = changed
        self._mask = _ENTRIES | Mask.CLOSE_WRITE if writes else _ENTRIES
        self._is_open = False
        self._instance: _Instance | None = None
        self._subscriptions: dict[Path, _Subscription] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches while inside."""
        self._is_open = True
        self.replace(())
        try:
            yield
        finally:
            self.replace(())
            self._is_open = False
            if self._instance is not None:
                self._instance.leave()
                self._instance = None

    def replace(self, directories: Iterable[Path]) -> bool:
        """Watches exactly these directories; returns whether one of them was not watched before."""
        self.problem = ""
        try:
            instance = self._instance = self._instance or (_shared_instance() if self._is_open else None)
        except OSError as error:
            instance, self.problem = None, str(error)
        if instance is None:
            return False
        paths = set(directories)
        for path in [path for path, held in self._subscriptions.items() if path not in paths or held.ended]:
            instance.unsubscribe(self._subscriptions.pop(path))
        added = paths - self._subscriptions.keys()
        for path in added:
            try:
                self._subscriptions[path] = instance.subscribe(path, self._mask, lambda _: self._changed())
            except (FileNotFoundError, NotADirectoryError):
                continue  # the directory no longer exists
            except OSError as error:
                self.problem = str(error)
        return not added.isdisjoint(self._subscriptions)


async def settled_changes(*directories: Path, settle: float = 0.1) -> AsyncGenerator[None, None]:
    """Yields at first, and `settle` seconds after something in the directories changed: editors write in many steps.

    For one file, watch its own directory and its target's. Close it with `aclosing`.
    """
    changed = Signal()
    async with AsyncExitStack() as stack:
        for path in sorted(set(directories)):
            directory = Directory(path, writes=True)
            directory.changed.subscribe(changed.notify)
            await stack.enter_async_context(directory.watching())
        async for _ in changed.notifications():
            await asyncio.sleep(settle)
            yield


def nearest_directory(path: Path) -> Path:
    """The directory at `path`, or its nearest existing parent."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


class _Subscription:
    """One reader of a directory's events; `ended` when the directory was removed or moved."""

    __slots__ = ("callback", "ended", "mask", "watch")

    def __init__(self, watch: int, mask: Mask, callback: Callback) -> None:
        self.watch, self.mask, self.callback, self.ended = watch, mask, callback, False


class _Instance:
    """The inotify instance of an event loop.

    The kernel keeps one watch per directory, regardless of the number of subscribers and their paths: the watch has the
    union of their events, and each subscriber is called for its own events.
    """

    def __init__(self) -> None:
        self.users = 0
        self._inotify = Inotify()
        self._subscriptions: dict[int, list[_Subscription]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inotify.fd, self.read_pending)

    def subscribe(self, path: Path, mask: Mask, callback: Callback) -> _Subscription:
        watch = self._inotify.add_watch(path, mask | Mask.MASK_ADD | Mask.ONLYDIR)
        subscription = _Subscription(watch, mask, callback)
        self._subscriptions.setdefault(watch, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: _Subscription) -> None:
        subscription.callback = lambda _: None  # it can be next in a round of callbacks
        others = self._subscriptions.get(subscription.watch, [])
        if subscription in others:
            others.remove(subscription)
            if not others:
                self._remove(subscription.watch)

    def leave(self) -> None:
        """One user less; the last user closes it."""
        self.users -= 1
        if not self.users:
            del _instances[self._loop]
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()

    def _remove(self, watch: int) -> None:
        del self._subscriptions[watch]
        with suppress(OSError):  # the kernel removes the watch together with its directory
            self._inotify.remove_watch(watch)

    def read_pending(self) -> None:
        """Calls the subscribers for the events queued by the kernel until now."""
        if not self.users:
            return
        count = 0
        while count < _BATCH and (events := self._inotify.read()):
            for event in events:
                self._dispatch(event)
            count += len(events)
            if not self.users:  # closed by one of them
                return

    def _dispatch(self, event: Event) -> None:
        if event.mask & Mask.Q_OVERFLOW:
            concerned = [subscription for group in self._subscriptions.values() for subscription in group]
        else:
            watch = event.watch
            if watch not in self._subscriptions:
                return
            group = self._subscriptions[watch]
            concerned = [subscription for subscription in group if event.mask & (subscription.mask | _ENDED)]
            if event.mask & _ENDED:
                self._remove(watch)
                for subscription in concerned:
                    subscription.ended = True
        for subscription in concerned:
            subscription.callback(event)


# By event loop, as file descriptors are: a process with several loops has one instance for each.
_instances: WeakKeyDictionary[asyncio.AbstractEventLoop, _Instance] = WeakKeyDictionary()


def _shared_instance() -> _Instance:
    """The instance of the running loop, with one more user; OSError if the kernel has none left."""
    loop = asyncio.get_running_loop()
    instance = _instances.get(loop)
    if instance is None:
        instance = _instances[loop] = _Instance()
    instance.users += 1
    return instance
