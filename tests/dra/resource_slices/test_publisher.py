"""ResourceSlices published to the embedded API server over TLS, and what brings them back."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.kube.serving import ServedApi, requests_ended, served_api

from plugwright.apiserver.kinds import NODES, RESOURCE_SLICES
from plugwright.apiserver.store import ObjectKey, Store
from plugwright.dra.resource_slices.known_slices import KnownSlices
from plugwright.dra.resource_slices.publisher import PublisherState, SlicePublisher
from plugwright.dra.resource_slices.slice_comparison import Document
from plugwright.dra.resource_slices.slices import PoolContent
from plugwright.errors import MalformedMessage, PeerRefused
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.kube.credentials import Credentials
from plugwright.system.concurrency import cancel

DRIVER = "gpu.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}
LIMIT = 60.0  # seconds; only a test that fails waits for so long
EPOCH = "2026-11-15T12:00:00Z"


def gpus(count: int, **more: Any) -> PoolContent:
    return PoolContent(tuple({"name": f"gpu-{number}", **deepcopy(more)} for number in range(count)))


class Node:
    """A node whose slices are looked at, and whose publishers run until the test ends."""

    def __init__(self, served: ServedApi) -> None:
        self.served, self.api = served, served.client()
        self.running: list[asyncio.Task[None]] = []

    @property
    def slices(self) -> list[Document]:
        return list(self.served.store.objects(RESOURCE_SLICES.qualified))

    @property
    def devices(self) -> list[str]:
        """In the order in which a scheduler tries them; none while the pool is not complete."""
        generation = max((one["spec"]["pool"]["generation"] for one in self.slices), default=0)
        current = [one for one in self.slices if one["spec"]["pool"]["generation"] == generation]
        if any(one["spec"]["pool"]["resourceSliceCount"] != len(current) for one in current):
            return []
        return [device["name"] for one in current for device in one["spec"].get("devices") or ()]

    @property
    def generations(self) -> list[int]:
        return [one["spec"]["pool"]["generation"] for one in self.slices]

    def start(self, api: ApiClient | None = None) -> SlicePublisher:
        publisher = SlicePublisher(api or self.api, DRIVER, "node")
        self.running.append(asyncio.create_task(publisher.run()))
        return publisher

    async def published(self, content: PoolContent) -> SlicePublisher:
        publisher = self.start()
        publisher.content.publish(content)
        await reached(publisher, PublisherState.PUBLISHED)
        return publisher

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not fact():
                await self.served.store.changes(self.served.store.revision)

    async def wipe(self) -> None:
        """As a kubelet does that starts."""
        await self.api.delete(SLICES)


class OvertakenApi(ApiClient):
    """An answer to a creation comes when the watch has already said that the slice was deleted again."""

    is_overtaken = True

    async def create(self, path: str, body: Document, **query: str) -> Document:
        answer = await super().create(path, body, **query)
        if not self.is_overtaken:
            await self.delete(f"{path}/{answer['metadata']['name']}")
            async with asyncio.timeout(LIMIT):
                while not self.is_overtaken:
                    await asyncio.sleep(0.001)
        return answer

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]:
        async with aclosing(super().watch(path, resource_version, **query)) as changes:
            async for kind, document in changes:
                yield kind, document
                self.is_overtaken |= kind == "DELETED"


async def reached(publisher: SlicePublisher, state: PublisherState) -> None:
    async with asyncio.timeout(LIMIT):
        await publisher.status.until(lambda status: status.state is state)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with served_api(tmp_path) as served:
        found = Node(served)
        yield found
        await cancel(*found.running)
        found.api.close()


async def test_slices_belong_to_the_node_and_have_names_in_order(node: Node) -> None:
    publisher = await node.published(gpus(300))
    prefixes = [f"{index:05x}-{DRIVER}-node-" for index in range(3)]
    assert [one["metadata"]["generateName"] for one in node.slices] == prefixes
    assert node.devices == [f"gpu-{number}" for number in range(300)]
    [owner] = node.slices[0]["metadata"]["ownerReferences"]
    uid = node.served.store.require(ObjectKey(NODES.qualified, "", "node"))["metadata"]["uid"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Node", "node", uid, True)
    status = publisher.status.value
    assert (status.generation, status.slices, status.devices, status.dropped) == (1, 3, 300, ())


async def test_nothing_is_published_before_devices_are_known(node: Node) -> None:
    publisher = node.start()
    await node.api.get("/api/v1/nodes/node")
    assert publisher.status.value.state is PublisherState.WAITING
    assert node.slices == []
    publisher.content.publish(PoolContent())
    await reached(publisher, PublisherState.PUBLISHED)
    [empty] = node.slices
    assert empty["spec"]["pool"] == {"name": "node", "generation": 1, "resourceSliceCount": 1}


async def test_one_changed_slice_keeps_the_generation(node: Node) -> None:
    publisher = await node.published(gpus(300))
    publisher.content.publish(PoolContent((*gpus(299).devices, {"name": "last"})))
    await node.until(lambda: node.devices[-1:] == ["last"])
    assert node.generations == [1, 1, 1]
    publisher.content.publish(gpus(400))
    await node.until(lambda: len(node.devices) == 400)
    assert node.generations == [2, 2, 2, 2]
    publisher.content.publish(gpus(10))
    await node.until(lambda: len(node.devices) == 10)
    assert len(node.slices) == 1


async def test_two_changed_slices_are_a_new_generation(node: Node) -> None:
    """Otherwise a scheduler could read one before and the other after the change."""
    publisher = await node.published(gpus(300))
    first, *middle, last = gpus(300).devices
    changed = {"attributes": {"model": {"string": "b"}}}
    publisher.content.publish(PoolContent(({**first, **changed}, *middle, {**last, **changed})))
    await node.until(lambda: node.generations == [2, 2, 2])


async def test_wiped_slices_are_back_soon_and_once(node: Node) -> None:
    publisher = await node.published(gpus(300))
    await node.wipe()
    await node.until(lambda: len(node.devices) == 300)
    await settled(node)
    assert len([request for request in node.served.requests if request.startswith("POST")]) == 6
    assert publisher.status.value.state is PublisherState.PUBLISHED


async def test_a_slice_deleted_before_its_creation_is_answered_is_back(node: Node) -> None:
    server = ClusterAccess.in_cluster(node.served.environment, node.served.directory)
    assert server is not None
    api = OvertakenApi(server)
    publisher = node.start(api)
    publisher.content.publish(gpus(1))
    await reached(publisher, PublisherState.PUBLISHED)
    api.is_overtaken = False
    publisher.content.publish(gpus(200))
    await node.until(lambda: api.is_overtaken and len(node.devices) == 200)
    api.close()


async def test_a_watch_that_has_expired_is_begun_again(tmp_path: Path) -> None:
    """The server remembers one change alone, and the first publication is three."""
    async with served_api(tmp_path, Store(history=1)) as served:
        node = Node(served)
        await node.published(gpus(300))
        async with asyncio.timeout(LIMIT):
            while served.requests.count(f"GET {SLICES}") < 3:  # a list, a watch that has expired, and another list
                await asyncio.sleep(0.01)
        await node.api.delete(f"{SLICES}/{node.slices[0]['metadata']['name']}")
        await node.until(lambda: len(node.devices) == 300)
        await cancel(*node.running)
        node.api.close()


async def test_a_foreign_edit_is_repaired_soon(node: Node) -> None:
    await node.published(gpus(2))
    path = f"{SLICES}/{node.slices[0]['metadata']['name']}"
    await node.api.patch(path, {"spec": {"devices": [{"name": "other"}]}}, "merge-patch")
    await node.until(lambda: node.devices == ["gpu-0", "gpu-1"])


async def test_a_slice_too_many_is_deleted_and_the_pool_has_a_new_generation(node: Node) -> None:
    await node.published(gpus(2))
    extra = deepcopy(node.slices[0])
    extra["metadata"] = {"name": "00000-zzz"}
    await node.api.create(SLICES, extra)
    await node.until(lambda: len(node.slices) == 1 and node.generations == [2])


async def test_slices_of_other_drivers_and_nodes_are_left_alone(node: Node) -> None:
    for driver, name in (("nic.example.com", "node"), (DRIVER, "other")):
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": name, "pool": pool}
        await node.api.create(SLICES, {"metadata": {"generateName": "a-"}, "spec": spec})
    await node.published(gpus(1))
    await settled(node)
    assert len(node.slices) == 3


async def test_a_restart_with_the_same_devices_writes_nothing(node: Node) -> None:
    content = gpus(200, capacity={"memory": {"value": "1024Mi"}}, taints=[TAINT])
    node.served.rewrite = with_times
    await node.published(content)
    await cancel(*node.running)
    before = len(node.served.written())
    again = gpus(200, capacity={"memory": {"value": "1Gi"}}, taints=[TAINT])
    await node.published(again)
    await settled(node)
    assert len(node.served.written()) == before


async def test_two_instances_with_the_same_devices_do_not_fight(node: Node) -> None:
    await node.published(gpus(200))
    before = len(node.served.written())
    await node.published(gpus(200))
    await settled(node)
    assert len(node.served.written()) == before


async def test_two_instances_with_different_devices_write_ever_less_often(node: Node) -> None:
    await node.published(gpus(2))
    await node.published(gpus(3))
    await asyncio.sleep(3)
    assert len(node.served.written()) < 20


async def test_an_api_server_that_is_away_is_said(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    publisher = await node.published(gpus(2))
    await settled(node)
    await node.served.stop()
    await reached(publisher, PublisherState.AWAY)
    publisher.content.publish(gpus(3))
    await node.served.start()
    await node.until(lambda: len(node.devices) == 3)
    await reached(publisher, PublisherState.PUBLISHED)
    assert len([record for record in caplog.records if "not published" in record.message]) <= 2


async def test_refused_devices_leave_those_before_in_place(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    publisher = await node.published(gpus(300))
    bad = {"name": "bad", "attributes": {"version": {"version": "v1"}}}
    publisher.content.publish(PoolContent((*gpus(299, attributes={"a": {"int": 1}}).devices, bad)))
    await reached(publisher, PublisherState.REFUSED)
    assert "semver" in publisher.status.value.reason
    await node.until(lambda: len(node.devices) == 300)
    await settled(node)
    assert node.devices == [f"gpu-{number}" for number in range(300)]
    assert len([record for record in caplog.records if record.message == "slices refused"]) == 1
    before = len(node.served.written())
    await node.wipe()
    await node.until(lambda: len(node.devices) == 300)
    await settled(node)
    assert len(node.served.written()) == before + 4
    publisher.content.publish(gpus(3))
    await reached(publisher, PublisherState.PUBLISHED)
    assert len(node.devices) == 3


class RejectingApi(ApiClient):
    """As an API server whose admission rejects new slices for a while."""

    rejects = True
    rejected = 0

    async def create(self, path: str, body: Document, **query: str) -> Document:
        if self.rejects:
            self.rejected += 1
            raise PeerRefused("Invalid", "denied by a policy")
        return await super().create(path, body, **query)


async def test_refused_devices_are_sent_again_ever_later_and_changed_ones_immediately(node: Node) -> None:
    now = 0.0
    access = ClusterAccess.in_cluster(node.served.environment, node.served.directory)
    assert access is not None
    api = RejectingApi(access)
    publisher = SlicePublisher(api, DRIVER, "node", lambda: now)
    node.running.append(asyncio.create_task(publisher.run()))

    async def wake(seconds: float, content: PoolContent, attempts: int) -> None:
        """The number of attempts in all once the clock shows this time."""
        nonlocal now
        now, is_expected = seconds, attempts > api.rejected
        publisher.content.publish(content)
        async with asyncio.timeout(LIMIT):
            while is_expected and api.rejected < attempts:
                await asyncio.sleep(0.01)
        if not is_expected:
            await settled(node)
        assert api.rejected == attempts

    try:
        for seconds, attempts in ((0, 1), (5, 1), (15, 2), (25, 2), (40, 3)):
            await wake(seconds, gpus(2), attempts)
        assert publisher.status.value.state is PublisherState.REFUSED
        await wake(40, gpus(3), 4)
        await wake(55, gpus(3), 5)  # the first delay again
        api.rejects = False
        publisher.content.publish(gpus(4))
        await reached(publisher, PublisherState.PUBLISHED)
        assert len(node.devices) == 4
    finally:
        api.close()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (PoolContent(({"name": "a"}, {"name": "a"})), "a device must be in a pool once, got 'a' twice"),
        (
            PoolContent(({"name": "a", "consumesCounters": [{"counterSet": "card", "counters": {}}]},)),
            "device 'a' consumes the counter set 'card', which is not in the pool",
        ),
    ],
)
async def test_a_pool_that_no_scheduler_can_use_is_not_sent(node: Node, content: PoolContent, text: str) -> None:
    publisher = node.start()
    publisher.content.publish(content)
    await reached(publisher, PublisherState.REFUSED)
    assert publisher.status.value.reason == text
    assert node.served.written() == []


async def test_counter_sets_have_slices_of_their_own(node: Node) -> None:
    sets = tuple({"name": f"card-{number}", "counters": {"memory": {"value": "40Gi"}}} for number in range(9))
    consumption = [{"counterSet": "card-0", "counters": {"memory": {"value": "20Gi"}}}]
    await node.published(PoolContent(gpus(2, consumesCounters=consumption).devices, sets))
    sizes = [(len(one["spec"].get("sharedCounters", ())), len(one["spec"].get("devices", ()))) for one in node.slices]
    assert sizes == [(8, 0), (1, 0), (0, 2)]


async def test_devices_whose_taint_is_dropped_are_left_out_and_it_is_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.served.rewrite = without("taints")
    tainted = {"name": "broken", "taints": [TAINT]}
    publisher = await node.published(PoolContent((*gpus(2).devices, tainted)))
    await settled(node)
    assert node.devices == ["gpu-0", "gpu-1"]
    assert (publisher.status.value.dropped, publisher.status.value.left_out) == (("taints",), 1)
    assert len(node.served.written()) == 2  # one to see what is dropped, which stores nothing
    assert [record.levelno for record in caplog.records if "drops fields" in record.message] == [logging.WARNING]
    writes = len(node.served.written())
    publisher.content.publish(PoolContent((*gpus(2).devices, tainted)))
    await settled(node)
    assert len(node.served.written()) == writes


async def test_other_dropped_fields_are_said_and_not_sent_again(node: Node) -> None:
    node.served.rewrite = without("allowMultipleAllocations")
    publisher = await node.published(gpus(200, allowMultipleAllocations=True))
    await settled(node)
    assert publisher.status.value.dropped == ("allowMultipleAllocations",)
    assert len(node.devices) == 200
    assert len(node.served.written()) == 2


async def test_a_taint_keeps_its_time_when_slices_are_written_again(node: Node) -> None:
    node.served.rewrite = with_times
    publisher = await node.published(gpus(2, taints=[TAINT]))
    node.served.rewrite = None
    publisher.content.publish(gpus(100, taints=[TAINT]))
    await node.until(lambda: len(node.devices) == 100)
    times = [device["taints"][0].get("timeAdded") for one in node.slices for device in one["spec"]["devices"]]
    assert times[:2] == [EPOCH, EPOCH]
    await node.wipe()
    await node.until(lambda: len(node.devices) == 100)
    assert node.slices[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] == EPOCH


async def test_an_api_server_without_claims_is_said() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        api = ApiClient(ClusterAccess(f"http://127.0.0.1:{port}", Credentials()))
        publisher = SlicePublisher(api, DRIVER, "node")
        running = asyncio.create_task(publisher.run())
        await reached(publisher, PublisherState.AWAY)
        await cancel(running)
        await requests_ended()
        api.close()
    assert (
        publisher.status.value.reason == "the API server has no resource.k8s.io/v1, which Kubernetes has from 1.34 on"
    )


async def test_slices_wait_for_their_node(node: Node) -> None:
    key = ObjectKey(NODES.qualified, "", "node")
    before = node.served.store.delete(key)
    publisher = node.start()
    publisher.content.publish(gpus(1))
    await reached(publisher, PublisherState.AWAY)
    assert "no Node node yet" in publisher.status.value.reason
    await node.api.create("/api/v1/nodes", {"metadata": {"name": "node"}})
    await reached(publisher, PublisherState.PUBLISHED)
    [owner] = node.slices[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == node.served.store.require(key)["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_node_made_anew_is_the_owner_of_slices_made_anew(node: Node) -> None:
    await node.published(gpus(1))
    await node.api.delete("/api/v1/nodes/node")
    made = await node.api.create("/api/v1/nodes", {"metadata": {"name": "node"}})
    await node.wipe()
    await node.until(lambda: len(node.devices) == 1)
    assert node.slices[0]["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


async def test_a_thousand_devices_are_published_in_eight_requests(node: Node) -> None:
    await node.published(
        gpus(1000, attributes={"model": {"string": "Mock-A100"}}, capacity={"memory": {"value": "40Gi"}})
    )
    assert len(node.served.written()) == 8


async def settled(node: Node) -> None:
    """Returns when no request has come for a while."""
    count = -1
    while count != len(node.served.requests):
        count = len(node.served.requests)
        await asyncio.sleep(0.4)


def with_times(document: Document) -> None:
    for device in document.get("spec", {}).get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", EPOCH)


def without(name: str) -> Callable[[Document], None]:
    def rewrite(document: Document) -> None:
        for device in document.get("spec", {}).get("devices") or ():
            device.pop(name, None)

    return rewrite


def change(number: int) -> Document:
    """One more slice of this driver and node."""
    metadata = {"name": f"s{number}", "uid": str(number), "resourceVersion": "1"}
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": metadata, "spec": {"driver": DRIVER, "nodeName": "node", "pool": pool}}


@pytest.mark.parametrize(("kind", "most"), [("ADDED", 2_000), ("DELETED", 20_000)])
def test_slices_without_end_are_refused(kind: str, most: int) -> None:
    """Each takes memory until the next list."""
    known = KnownSlices()
    for number in range(most):
        known.change(kind, change(number))
    with pytest.raises(MalformedMessage, match=f"at most {most} slices of one driver and node"):
        known.change(kind, change(most))
    known.replace_all([])
    known.change(kind, change(most))
