"""Publishes the ResourceSlices of one driver on this node in the API server, watches and repairs them.

`slices` computes the wanted slices; this module sends the requests and tracks the existing slices: from a list, from
the watch after it, and from the responses to its own requests, so that nothing is created twice while the watch is
outdated. Slices stay when the process ends: the kubelet deletes them if no driver returns.

A slice deleted or changed by others is repaired within a second. The kubelet deletes slices when it starts. If another
program continues to change them, the repairs are delayed more and more.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from plugwright.dra.resource_api_client import ResourceClient
from plugwright.dra.resource_slices import slice_comparison, slices
from plugwright.dra.resource_slices.known_slices import DroppedFields, KnownSlices, Repairs
from plugwright.dra.resource_slices.slice_comparison import Document, checked_slice
from plugwright.dra.resource_slices.slices import Plan, Pool, PoolContent
from plugwright.errors import ConfigError, InvalidValue, MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.api_client import segment
from plugwright.system.concurrency import Backoff, first
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce

__all__ = ["PublisherState", "PublisherStatus", "SlicePublisher"]

logger = logging.getLogger(__name__)

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CHANGED = ("Conflict", "NotFound", "AlreadyExists", "Expired", "Gone")  # changed since the last read: read again
_CONTENT = ("Invalid", "BadRequest", "RequestEntityTooLarge", "413")  # invalid content, now and later
_AGAIN, _LONGEST_AGAIN = 10.0, 300.0  # seconds until rejected content is tried again, first and at the most
_REASON = 400  # characters of a reason that are shown
_STEADY = 10.0  # seconds; a watch that lasted this long resets the back-off
_MOST_CHANGED = 3  # consecutive conflicts or expired watches that are no coincidence


class PublisherState(StrEnum):
    WAITING = "waiting"  # for the first list of devices
    PUBLISHED = "published"
    REFUSED = "refused"
    AWAY = "away"
    UNUSABLE = "unusable"  # invalid responses of the API server, or unusable credentials


class PublisherStatus(msgspec.Struct, frozen=True):
    """`dropped` are fields that the API server drops; `left_out` is the number of devices not offered because of that.

    `unwatched` is why only lists, which back off, detect changes of the slices; empty if they are watched.
    """

    state: PublisherState = PublisherState.WAITING
    reason: str = ""
    generation: int = 0
    slices: int = 0
    devices: int = 0
    dropped: tuple[str, ...] = ()
    left_out: int = 0
    unwatched: str = ""


class SlicePublisher:
    """`content` is to be published, None while it is unknown; `published` is the content in the API server."""

    def __init__(
        self, api: ResourceClient, driver: str, node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.content: Latest[PoolContent | None] = Latest(None)
        self.published: Latest[PoolContent | None] = Latest(None)
        self.status = Latest(PublisherStatus())
        self._api, self._clock = api, clock
        self._pool = Pool(driver, node, node)
        self._known = KnownSlices()
        self._wakes = Signal()
        self._repairs = Repairs()
        self._attempted: PoolContent | None = None  # the latest content for which requests were made
        self._good: PoolContent | None = None  # the latest accepted content
        self._refused: tuple[PoolContent, float] | None = None  # the rejected content, and when to try it again
        self._again = Backoff(_AGAIN, _LONGEST_AGAIN)
        self._dropped = DroppedFields()
        self._times: slice_comparison.TaintTimes = {}
        self._problems = LogOnce(logger)
        self._conflicts = self._broken_watches = 0  # in a row

    @property
    def is_current(self) -> bool:
        """Whether `published` is the result of the latest `content`; False while a request for it is in progress."""
        return self.status.value.state is PublisherState.PUBLISHED and self._good is self.content.value

    async def run(self) -> None:
        """Publishes indefinitely."""
        end = self.content.subscribe(self._wakes.notify)
        backoff = Backoff(0.05, 15.0, jitter=0.5)
        try:
            while True:
                begun = self._clock()
                try:
                    await self._follow()
                except (ConfigError, MalformedMessage, PeerGone, PeerRefused) as error:
                    self._failed(error)
                if self._clock() - begun > _STEADY:
                    backoff.reset()
                await asyncio.sleep(backoff.delay())
        finally:
            end()

    async def _follow(self) -> None:
        """Lists the slices, and publishes until their watch ends."""
        selector = f"spec.driver={self._pool.driver},spec.nodeName={self._pool.node}"
        found, version = await self._list(selector)
        self._known.replace_all(found)
        if self.status.value.state is PublisherState.AWAY or self._dropped.is_old(self._clock()):
            self._dropped.forget()
            self._known.accepted.clear()
        if self._good is None:
            self._good = slices.published_content(self._known.slices.values(), self._pool.name)
        await self._synchronize_once()  # whether or not the watch succeeds
        await first(self._watch(selector, version), self._synchronize(self._clock()))

    async def _list(self, selector: str) -> tuple[list[Document], str]:
        try:
            return await self._api.list(_SLICES, fieldSelector=selector)
        except PeerRefused as error:
            if error.code != "NotFound":
                raise
            raise PeerGone("the API server has no resource.k8s.io/v1, which Kubernetes has from 1.34 on") from error

    async def _watch(self, selector: str, version: str) -> None:
        try:
            async with aclosing(self._api.watch(_SLICES, version, fieldSelector=selector)) as changes:
                async for kind, document in changes:
                    if self._known.change(kind, document):
                        self._wakes.notify()
                    self._watched()
        except PeerGone:
            pass  # the next list shows whether the server is unreachable
        except (ConfigError, MalformedMessage, PeerRefused) as error:
            self._unwatched(error)

    def _unwatched(self, error: Exception) -> None:
        """Handles the end of a watch: watches expire occasionally; if none lasts, that is the API server's fault."""
        self._broken_watches += 1
        if _is_changed(error) and self._broken_watches < _MOST_CHANGED:
            logger.debug("slices have changed meanwhile", extra={**self._facts(), "reason": str(error)})
            return
        self._set_status(reason=self.status.value.reason, unwatched=f"slices cannot be watched: {error}"[:_REASON])
        self._log_once("slices cannot be watched, listing them instead", str(error), key="watch")

    def _watched(self) -> None:
        self._broken_watches = 0
        if self._problems.recovered("watch"):
            logger.info("slices are watched again", extra=self._facts())
        self._set_status(reason=self.status.value.reason, unwatched="")

    async def _synchronize(self, begun: float) -> None:
        """Publishes changes until an error occurs."""
        seen, wait = -1, None
        while True:
            steady = begun + _STEADY - self._clock() if self.status.value.unwatched else None
            if steady is not None and steady <= 0:
                self._watched()
                continue
            seen = await self._wakes.wait(seen, _earliest(wait, steady))
            wait = await self._synchronize_once()

    async def _synchronize_once(self) -> float | None:
        """Publishes the content; returns the seconds until the next call is due even without a change."""
        content, again = self._usable_content()
        if content is None:
            return again
        try:
            wait = await self._publish(content)
        except InvalidValue as error:
            return self._refuse(content, str(error))
        except PeerRefused as error:
            if error.code not in _CONTENT:
                raise
            return self._refuse(content, error.message)
        return _earliest(wait, again)

    async def _publish(self, content: PoolContent) -> float | None:
        """Publishes the content; returns the seconds until the next attempt, None when it is done."""
        is_repair = content is self._attempted
        plan = self._plan(content)
        if plan:
            if is_repair and (wait := self._repairs.wait(self._clock())):
                return wait
            self._attempted = content
            dropped = await self._try_fields(content)
            if not dropped:
                if plan.create:
                    await self._find_node()
                    plan = self._plan(content)
                dropped = await self._apply(plan)
                if is_repair:
                    self._repaired()
            if self._dropped.add(dropped, self._clock()):
                return self._say_dropped()
        self._published(plan, content, is_new=not is_repair)
        return None

    def _usable_content(self) -> tuple[PoolContent | None, float | None]:
        """The newest content, or the previous one while the API server rejects it; and when to check again."""
        content = self.content.value
        if content is None:
            self._set_status(state=PublisherState.WAITING, reason="")
        if self._refused is None:
            return content, None
        if content is None or self._refused[0] != content:
            self._refused = None
            self._again.reset()
            return content, None
        wait = self._refused[1] - self._clock()
        if wait > 0:
            return self._good, wait
        self._refused = None
        return content, None

    def _plan(self, content: PoolContent) -> Plan:
        slices.check(content)
        offered = slice_comparison.without(content.devices, self._dropped.names)
        self._times = {**self._times, **slice_comparison.taint_times(self._known.slices.values())}
        devices = slice_comparison.with_taint_times(offered, self._times)
        # Only for the present taints: a taint that returns starts again.
        self._times = slice_comparison.taint_times([{"spec": {"devices": devices}}])
        counter_sets = content.counter_sets if not {"sharedCounters", "consumesCounters"} & self._dropped.names else ()
        existing = tuple(self._known.slices.values())
        wanted = slices.wanted_slices(self._pool, PoolContent(devices, counter_sets), existing)
        return slices.plan(existing, wanted, self._known.accepted)

    async def _try_fields(self, content: PoolContent) -> frozenset[str]:
        """Tries fields without which devices must not be offered; returns the dropped ones. Stores nothing."""
        devices = self._dropped.untried(content.devices)
        if not devices:
            return frozenset()
        [wanted] = slices.wanted_slices(self._pool, PoolContent(devices))
        answer = await self._api.create(_SLICES, wanted, dryRun="All")
        # The response to a dry run has no resource version.
        identity = {"name": "dry-run", "uid": "dry-run", "resourceVersion": "0"}
        answered = checked_slice({"metadata": identity, "spec": answer.get("spec")})
        return self._dropped.tried(wanted["spec"], answered["spec"])

    async def _find_node(self) -> None:
        """Finds the Node that should own the slices, which can have been recreated with the same name."""
        try:
            node = await self._api.get(f"/api/v1/nodes/{segment(self._pool.node)}")
        except PeerRefused as error:
            if error.code == "NotFound":
                raise PeerGone(f"there is no Node {self._pool.node} yet") from error
            if error.code != "Forbidden":
                raise
            self._log_once("slices have no owner and stay when the Node is deleted", error.message)
            return
        if not isinstance(uid := node["metadata"].get("uid"), str) or not uid:
            raise MalformedMessage(f"the Node {self._pool.node} must have a uid, got {uid!r:.80}")
        self._pool = replace(self._pool, node_uid=uid)

    async def _apply(self, plan: Plan) -> frozenset[str]:
        """Sends the requests; returns the fields that did not come back."""
        dropped: set[str] = set()
        for document in plan.delete:
            await self._delete(document)
        for document in plan.update:
            dropped |= self._known.answered(document, await self._api.update(_path(document), document))
        for document in plan.create:
            dropped |= self._known.answered(document, await self._api.create(_SLICES, document))
        return frozenset(dropped)

    async def _delete(self, document: Document) -> None:
        metadata = document["metadata"]
        try:
            await self._api.delete(_path(document), metadata["uid"], metadata["resourceVersion"])
        except PeerRefused as error:
            if error.code != "NotFound":
                raise
        self._known.removed(metadata["uid"])

    def _say_dropped(self) -> float:
        self._attempted = None
        fields = ", ".join(sorted(self._dropped.names))
        logger.warning("the API server drops fields of slices", extra={**self._facts(), "fields": fields})
        return 0.0  # devices could have to be left out now

    def _refuse(self, content: PoolContent, reason: str) -> float:
        """Restores the last accepted content: a pool of which only a part was written offers nothing."""
        if content is self._good:
            self._good = None
        if content is self.content.value:
            self._refused = content, self._clock() + self._again.delay()
        self._set_status(state=PublisherState.REFUSED, reason=reason)
        self._log_once("slices refused", reason)
        return 0.0

    def _published(self, plan: Plan, content: PoolContent, is_new: bool) -> None:
        self._attempted, self._conflicts = content, 0
        if not plan:
            self._repairs.not_needed()
        if self._refused is None:  # otherwise the previous content is published
            self._good = content
            self._again.reset()
            self._problems.recovered()
        self.published.publish_if_changed(slices.published_content(self._known.slices.values(), self._pool.name))
        if self._refused is None:
            self._set_status(reason="", **self._pool_facts(plan, content))
            if plan and is_new:
                status = self.status.value
                facts = {**self._facts(), "devices": status.devices, "slices": status.slices}
                logger.info("slices published", extra=facts)

    def _pool_facts(self, plan: Plan, content: PoolContent) -> dict[str, object]:
        found = self._known.slices.values()
        offered = sum(len(one["spec"].get("devices") or ()) for one in found)
        return {
            "state": PublisherState.PUBLISHED,
            "generation": plan.generation,
            "slices": len(found),
            "devices": offered,
            "dropped": tuple(sorted(self._dropped.names)),
            "left_out": len(content.devices) - offered,
        }

    def _repaired(self) -> None:
        """Logs the first repair, and again if repairs do not end."""
        self._repairs.done(self._clock())
        level = logging.WARNING if self._repairs.count in (1, 5) else logging.DEBUG
        logger.log(
            level, "slices changed by another program, put back", extra={**self._facts(), "times": self._repairs.count}
        )

    def _failed(self, error: Exception) -> None:
        self._attempted = None
        self._conflicts = self._conflicts + 1 if _is_changed(error) else 0
        if 0 < self._conflicts < _MOST_CHANGED:
            logger.debug("slices have changed meanwhile", extra={**self._facts(), "reason": str(error)})
            return
        states = {PeerRefused: PublisherState.REFUSED, PeerGone: PublisherState.AWAY}
        state = next((state for kind, state in states.items() if isinstance(error, kind)), PublisherState.UNUSABLE)
        self._set_status(state=state, reason=str(error))
        self._log_once("slices not published, trying again", str(error))

    def _set_status(self, *, reason: str, **changes: object) -> None:
        # An API server lists every device of a slice that it rejects.
        changed = replace(self.status.value, reason=reason[:_REASON], **changes)
        self.status.publish_if_changed(changed)

    def _log_once(self, message: str, reason: str, key: str = "") -> None:
        facts = {**self._facts(), "reason": reason[:_REASON]}
        self._problems.warning(message, message + reason, key=key, extra=facts)

    def _facts(self) -> dict[str, str]:
        return {"driver": self._pool.driver, "node": self._pool.node}


def _is_changed(error: Exception) -> bool:
    return isinstance(error, PeerRefused) and error.code in _CHANGED


def _earliest(*waits: float | None) -> float | None:
    return min((seconds for seconds in waits if seconds is not None), default=None)


def _path(document: Document) -> str:
    return f"{_SLICES}/{segment(document['metadata']['name'])}"
