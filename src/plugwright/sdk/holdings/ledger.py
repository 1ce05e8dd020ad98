"""The ledger of one daemon: reads the sources of holdings, and tells every resource which devices to keep back.

`book` makes the decisions. Holdings come from the kubelet's checkpoint and from our own files. pod-resources names the
pods, and is the only source of claims whose files are lost; its List also makes the kubelet free the devices of ended
pods. But a List during an open Allocate makes the kubelet allocate the device a second time (3.57, 3.58): so the ledger
never calls List during an Allocate of ours, and otherwise only if a device is kept back, a holder has no name, or a
source is missing. `Get`, which has no such effect, shows whether a known pod still exists.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

from plugwright.errors import HoldersUnknown, PlugwrightError
from plugwright.model import Device
from plugwright.protocol.pod_resources import PodResources
from plugwright.sdk.holdings import sources
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import Holdings, HoldingSource
from plugwright.sdk.holdings.known_claims import KnownClaims
from plugwright.sdk.holdings.kubelet_checkpoint import CheckpointContent, KubeletCheckpoint
from plugwright.sdk.holdings.offers import OfferMemory
from plugwright.sdk.holdings.published import claims_by_device, published, waiting_by_resource
from plugwright.sdk.holdings.records import ClaimRecord, Closed, Memory, ServedResource
from plugwright.sdk.holdings.sources import UnnamedHolders
from plugwright.sdk.settings import Settings
from plugwright.system.concurrency import Backoff
from plugwright.system.inotify import settled_changes
from plugwright.system.latest import InProgress, Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Ledger"]

logger = logging.getLogger(__name__)

_LIMIT = 5.0  # seconds, for one request to the kubelet or one read of files
_PATIENCE = 1.0  # seconds that an operator waits for the end of an Allocate
_MOMENT = 0.01  # seconds; after a stop of this process, calls that have arrived in the meantime are handled first
_FRESH = 1.0  # seconds; a watcher of `status` can get ten reports in that time
_FIRST_RETRY = 0.2  # seconds, while a source is missing
_SETTLE = 0.01  # seconds
_UNRECORDED = Closed("its offer cannot be written to the state directory, which contains an earlier one", waits=True)
_LOST = "how devices were offered before is not known yet"


class Ledger:
    """`changed` is notified when other devices must be kept back; `latest` contains all holdings.

    `resend` sends the kubelet a device list again, which makes it write its checkpoint (4.31).
    """

    def __init__(
        self, settings: Settings, resend: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.time
    ) -> None:
        self.changed = Signal()
        self.allocating = InProgress()  # calls of Allocate, of all resources, until the kubelet has stored the answer
        self.latest = Latest(Holdings())
        self.memory = OfferMemory(settings)
        self.checkpoint = KubeletCheckpoint(settings.paths.checkpoint, settings.timeouts.checkpoint)
        self._paths, self._interval = settings.paths, settings.timeouts.holders
        self._clock, self._resend = clock, resend
        self._book = Book(keeps_memory=self.memory.is_kept, clock=clock)
        self._replaced: dict[str, bool] = {}  # resources without a list of their present plugin; True: not accepted yet
        self._closed: dict[str, Mapping[str, Closed]] = {}  # by resource, the devices kept back
        self._claims = KnownClaims(settings.paths)
        self._is_loaded = False
        self._turn, self._reading = asyncio.Lock(), asyncio.Lock()
        self._listed_at = -_FRESH
        self._unnamed = UnnamedHolders(self._interval)
        self._to_read, self._to_write = Signal(), Signal()
        self.wanted = Signal()  # notified before a reader needs a recent `latest`
        self.answered = Latest(0)  # the count of `wanted` when the last read for its readers began
        self.reading: tuple[HoldingSource, float] | None = None  # the source that is being read, and since when
        self._problems = LogOnce(logger)

    # For the inventories and the service of each resource.

    def offer(self, resource: str, devices: Mapping[str, Device], served: ServedResource) -> None:
        """Takes a resource's new list; ignores a previous plugin's lists between `replace` and `accept`."""
        if not self._replaced.get(resource):
            if self._replaced.pop(resource, None) is not None:
                self._book.withdraw(resource)
            self._book.offer(resource, devices, served)
            self._notify()

    def closed(self, resource: str, devices: Mapping[str, Device]) -> Mapping[str, Closed]:
        """The devices of a resource that must not be allocated, with the reasons."""
        closed = {**self._unrecorded(resource, devices), **self._book.closed(resource, devices)}
        if closed.keys() - self._closed.get(resource, {}).keys():
            self._to_read.notify()
        self._closed[resource] = closed
        self._to_write.notify()
        return closed

    def withdraw(self, resource: str) -> None:
        """The resource is no longer served, or by another plugin whose first list is still missing."""
        self._book.withdraw(resource)
        self.replace(resource)
        self._closed.pop(resource, None)
        self._notify()

    def take_over(self) -> None:
        """Another process has served a resource until now."""
        self._book.take_over()

    def replace(self, resource: str) -> None:
        """Another plugin serves the resource. Its old list counts as offered until there is a new one."""
        self._replaced[resource] = True

    def accept(self, resource: str) -> None:
        """Accepts the resource's lists again, which now come from its present plugin."""
        if resource in self._replaced:
            self._replaced[resource] = False

    def refusals(self, resource: str, device_ids: Collection[str]) -> dict[str, str]:
        return self._book.refusals(resource, device_ids)

    def begin_allocate(self, resource: str, device_ids: Collection[str]) -> None:
        if self._book.begin_allocate(resource, device_ids):
            self._notify()

    def end_allocate(self, resource: str, device_ids: Collection[str], *, is_answered: bool) -> None:
        if self._book.end_allocate(resource, device_ids, is_answered=is_answered):
            self._notify()
        if self.is_shared(resource, device_ids):
            self._to_write.notify()

    def is_shared(self, resource: str, device_ids: Iterable[str]) -> bool:
        """Whether another release on the node also offers hardware of these devices."""
        beside = self._book.beside_neighbours
        return bool(beside) and any((resource, device_id) in beside for device_id in device_ids)

    def must_confirm(self, resource: str, device_ids: Collection[str]) -> bool:
        """Whether only `confirm` shows that nothing else holds these devices."""
        is_outdated = self.memory.outdated is not None
        return (
            is_outdated
            or self.is_shared(resource, device_ids)
            or self._book.earlier_run.is_doubtful(resource, device_ids)
        )

    def _unrecorded(self, resource: str, device_ids: Iterable[str]) -> dict[str, Closed]:
        """The devices that the next run would take for another piece of hardware, or for another part of it."""
        new = self.memory.unrecorded(self._book.offers) - self._book.stored.keys()
        return {device_id: _UNRECORDED for device_id in device_ids if (resource, device_id) in new} if new else {}

    async def confirm(self, resource: str, device_ids: Collection[str]) -> dict[str, str]:
        """Why devices recorded as given out or claimed cannot be used, by id; empty if they can.

        For devices that another release offers too, first publishes what this release gives out and then reads the
        others' files: of two releases that take one device simultaneously, at least one sees the other. For changed
        offers, reads the checkpoint again until it accounts for the allocations of the run before.
        """
        before = self._book.offers
        if unrecorded := self._unrecorded(resource, device_ids):
            return {device_id: reason.reason for device_id, reason in unrecorded.items()}
        if self._book.earlier_run.is_doubtful(resource, device_ids):
            with suppress(HoldersUnknown, FileNotFoundError):
                await self.read_checkpoint()
            self._decide()
        if self.is_shared(resource, device_ids):
            if (offers := self.offers) is None:
                return dict.fromkeys(device_ids, _LOST)
            await self.memory.write(offers)
            await self._read_files()
            with suppress(HoldersUnknown, FileNotFoundError):
                await self.read_checkpoint()  # as of after the other files were read
            self._decide()
        return self._book.conflicts(resource, device_ids, before)

    # For readers of holdings.

    @property
    def waiting(self) -> dict[str, str]:
        """By resource, why devices wait for a source, and for which one."""
        return waiting_by_resource(self._closed)

    @property
    def offers(self) -> Memory | None:
        """The offers as the next run must know them; None while an earlier memory is lost."""
        return self._book.memory

    @property
    def claims_unknown(self) -> str:
        """Why unknown prepared claims are possible; empty if there cannot be any."""
        if HoldingSource.POD_RESOURCES not in self._book.missing or not self._claims.files.may_exist:
            return ""
        return self._book.unknown[HoldingSource.POD_RESOURCES].reason

    def take_prepared(self, driver: str, claims: Iterable[ClaimRecord]) -> None:
        """Takes the claims of a driver in this process, as soon as they are recorded."""
        if self._claims.take_prepared(driver, claims):
            self._take_claims()
            self._notify()

    def claimed(self, resource: str) -> dict[str, tuple[str, ...]]:
        """By device id, the claims that hold devices of a resource."""
        return claims_by_device(self._book, resource)

    async def list_pods(self, patience: float = _LIMIT) -> list[PodResources]:
        """All active pods. HoldersUnknown if the kubelet does not answer, or allocates for longer than `patience`."""
        try:
            async with asyncio.timeout(patience):
                await asyncio.sleep(_MOMENT)
                await self.allocating.ended()
        except TimeoutError:
            raise HoldersUnknown("pod-resources cannot be read: the kubelet allocates devices") from None
        asked = self._clock()
        try:
            with self._reading_from(HoldingSource.POD_RESOURCES):
                pods = await sources.listed_pods(self._paths.pod_resources_socket, _LIMIT)
        except (OSError, PlugwrightError) as error:
            self._book.fail(HoldingSource.POD_RESOURCES, clean(error))
            raise HoldersUnknown(clean(f"pod-resources cannot be read: {error}")) from error
        self._book.take_pods(sources.pods_by_device(pods), asked)
        self._claims.take_pods(pods)
        self._take_claims()
        return pods

    async def read_checkpoint(self) -> CheckpointContent:
        """The kubelet's checkpoint. HoldersUnknown if it cannot be read, FileNotFoundError without its directory."""
        try:
            with self._reading_from(HoldingSource.CHECKPOINT):
                file = await self.checkpoint.read()
        except Exception as error:  # the content can be invalid in any way
            self._book.fail(HoldingSource.CHECKPOINT, clean(error))
            if isinstance(error, FileNotFoundError):
                raise
            raise HoldersUnknown(clean(f"the checkpoint cannot be read: {error}")) from error
        if file.records != self._book.stored or self._book.waits_for_checkpoint:
            self._book.take_checkpoint(file.records, file.written or self._clock())
        self._problems.recovered(HoldingSource.CHECKPOINT)
        return file

    async def refreshed(self) -> Holdings:
        """All holdings, for a waiting user: reads at most once a second. Never raises."""
        async with self._turn:
            if time.monotonic() - self._listed_at >= _FRESH:
                self._listed_at = time.monotonic()
                await self._read_files()
                await self._name_holders()
                self._decide()
            self._publish()
        return self.latest.value

    async def start(self, served: Mapping[str, ServedResource], cdi: Iterable[str]) -> None:
        """Reads the sources that can affect the first lists; pods only if something has changed since the last run."""
        async with self._turn:
            self._claims.directories |= {Path(path) for path in cdi}
            self._claims.drivers = {how.driver for how in served.values()}
            has_changed = self._is_loaded
            if not self._is_loaded:
                memory = await self.memory.read()
                self._book = Book(memory, keeps_memory=self.memory.is_kept, clock=self._clock)
                self._book.was_ours = self.memory.was_served
                self._is_loaded = True
                has_changed = memory is None or any(
                    memory.resources.get(resource, (how.api, ""))[0] is not how.api for resource, how in served.items()
                )
            await self._read(list_pods=has_changed)

    async def read(self) -> None:
        """Reads all sources; the last content of an unreadable one stays."""
        async with self._turn:
            await self._read(list_pods=True)

    async def run(self) -> None:
        """Reads again while a device is kept back or on request, and stores the offers; runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_memory())
            group.create_task(self._follow())
            group.create_task(self._refresh())
            if self.memory.directory is not None:
                group.create_task(self._watch_neighbours(self.memory.directory))

    async def _follow(self) -> None:
        retry, read = Backoff(_FIRST_RETRY, max(_FIRST_RETRY, self._interval)), self._to_read.count
        while True:
            # The kubelet reports neither the end of a pod nor that of a claim known only from pod-resources.
            by_pods = any(claim.source is HoldingSource.POD_RESOURCES for claim in self._book.claims)
            is_missing, is_closed = bool(self.waiting), by_pods or any(self._closed.values())
            pause = min(retry.delay(), self._interval) if is_missing else self._interval if is_closed else None
            read = await self._to_read.wait(read, pause)
            if not is_missing:
                retry.reset()
            try:
                await self.read()
            except Exception as error:  # one read failed: the next one can succeed, and until then nothing changes
                logger.exception("cannot find out who holds devices", extra={"error": clean(error)})
                await asyncio.sleep(self._interval)

    async def _watch_neighbours(self, directory: Path) -> None:
        """Follows the files in which other releases publish their offers and allocations."""
        async with aclosing(settled_changes(directory, settle=_SETTLE)) as changes:
            async for _ in changes:
                with suppress(OSError, PlugwrightError):  # the next change, or the next Allocate, is read again
                    if self._take_neighbours(await self.memory.read_others()):
                        await self._read_files()
                        self._decide()
                    self._to_write.notify()  # our own file may be lost

    def _take_neighbours(self, memories: Mapping[str, Memory]) -> bool:
        before, is_new = self._book.ended_by_neighbours, self._book.take_neighbours(memories)
        if self._book.ended_by_neighbours - before:
            self._resend()
        return is_new

    async def _refresh(self) -> None:
        seen = 0
        while True:
            seen = await self.wanted.wait(seen)
            await self.refreshed()
            self.answered.publish(seen)

    async def _keep_memory(self) -> None:
        async for _ in self._to_write.notifications():
            if not self._is_loaded or (offers := self.offers) is None:
                continue
            before, is_written = self.memory.outdated, await self.memory.write(offers)
            if self.memory.outdated is not before:
                self._notify()
            if not is_written:
                await asyncio.sleep(self._interval)  # an attempt changes the directory, which is watched

    async def _read(self, *, list_pods: bool) -> None:
        await self._read_files()
        if list_pods:
            try:
                await self.list_pods()
                self._problems.recovered(HoldingSource.POD_RESOURCES)
            except HoldersUnknown as error:
                self._warn(HoldingSource.POD_RESOURCES, str(error))
            else:
                if any(self._closed.values()) and self._book.is_outdated:
                    await self.checkpoint.rewritten(self._resend)
                    await self._read_files()
        self._decide()
        self._publish()

    async def _read_files(self) -> None:
        try:
            await self.read_checkpoint()
        except (HoldersUnknown, FileNotFoundError) as error:
            self._warn(HoldingSource.CHECKPOINT, clean(error))
        async with self._reading:
            try:
                with self._reading_from(HoldingSource.PREPARED_CLAIMS):
                    self._take_neighbours(await self._claims.read(self._book.drivers, self.memory.others))
            except (OSError, PlugwrightError) as error:
                self._warn(HoldingSource.PREPARED_CLAIMS, clean(error))
            self._take_claims()

    @contextmanager
    def _reading_from(self, source: HoldingSource) -> Iterator[None]:
        self.reading = source, time.monotonic()
        try:
            yield
        finally:
            self.reading = None

    async def _name_holders(self) -> None:
        """Lists the pods if holders have no names yet; follows known pods without the effect of List.

        If a holder has no name after that, its pod may have ended: the kubelet has then freed the device, but writes
        that only after a device list (3.60, 4.31).
        """
        book, unnamed = self._book, self._unnamed
        is_unknown = bool(book.missing) or HoldingSource.POD_RESOURCES in book.unknown
        is_due = is_unknown or unnamed.is_due(book.unnamed) or not await self._follow_pods()
        if not is_due and not unnamed.is_due(book.unnamed):  # as of after the ended pods were forgotten
            return
        try:
            await self.list_pods(_PATIENCE)
        except HoldersUnknown as error:
            book.fail(HoldingSource.POD_RESOURCES, str(error).removeprefix("pod-resources cannot be read: "))
            return
        if unnamed.is_due(book.unnamed):
            await self.checkpoint.rewritten(self._resend)
            await self._read_files()
        unnamed.take(book.unnamed)

    async def _follow_pods(self) -> bool:
        """Forgets ended pods; False if the kubelet has no `Get`, or there are too many pods to request."""
        with self._reading_from(HoldingSource.POD_RESOURCES):
            found = await sources.followed_pods(self._paths.pod_resources_socket, set(self._book.pods.values()), _LIMIT)
        if found is not None:
            self._book.take_pods(found)
        return found is not None

    def _take_claims(self) -> None:
        files = self._claims.files
        self._book.take_claims(self._claims.all, are_complete=files.are_complete, may_exist=files.may_exist)

    def _decide(self) -> None:
        self._book.settle()
        self._to_write.notify()
        self._notify()

    def _notify(self) -> None:
        # Not immediately: the caller can be in the middle of changing an inventory.
        asyncio.get_running_loop().call_soon(self.changed.notify)

    def _warn(self, source: HoldingSource, reason: str) -> None:
        """Logs an unreadable source, but only if devices are kept back: otherwise nothing depends on it."""
        if any(self._closed.values()):
            facts = {"source": source.value, "error": clean(reason)}
            text = "devices stay Unhealthy: cannot read who holds their hardware"
            self._problems.warning(text, clean(reason), key=source, extra=facts)

    def _publish(self) -> None:
        self.latest.publish_if_changed(published(self._book, self._closed, self.latest.value, self._clock()))
