"""The slices of a pool: how devices are divided, what is the same, and which requests lead from one to the other."""

from copy import deepcopy
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.dra.resource_slices.known_slices import KnownSlices, Repairs
from plugwright.dra.resource_slices.slice_comparison import (
    Document,
    comparable,
    dropped_fields,
    taint_times,
    with_taint_times,
    without,
)
from plugwright.dra.resource_slices.slices import Plan, Pool, PoolContent, check, plan, published_content, wanted_slices
from plugwright.errors import InvalidValue

POOL = Pool("gpu.example.com", "n1", "n1", "uid-of-n1")
TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}


def gpus(number: int, **more: Any) -> PoolContent:
    return PoolContent(tuple({"name": f"gpu-{index}", **deepcopy(more)} for index in range(number)))


class Server:
    """What an API server keeps of a pool."""

    def __init__(self) -> None:
        self.slices: list[Document] = []
        self._numbers = count(1)

    def apply(self, made: Plan, most: int | None = None) -> None:
        """The first `most` requests of a plan, or all."""
        requests = [("delete", one) for one in made.delete]
        requests += [("update", one) for one in made.update] + [("create", one) for one in made.create]
        for kind, sent in requests[:most]:
            document = deepcopy(sent)
            if kind == "create":
                number = next(self._numbers)
                name = f"{document['metadata']['generateName']}{number:05}"
                document["metadata"] |= {"name": name, "uid": f"uid-{number}", "resourceVersion": "1"}
            uid = document["metadata"]["uid"]
            self.slices = [one for one in self.slices if one["metadata"]["uid"] != uid]
            if kind != "delete":
                self.slices.append(document)

    def publish(self, content: PoolContent) -> Plan:
        made = plan(self.slices, wanted_slices(POOL, content, self.slices))
        self.apply(made)
        return made

    @property
    def generations(self) -> list[int]:
        return [one["spec"]["pool"]["generation"] for one in self.slices]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize(
    ("content", "sizes"),
    [
        (PoolContent(), [0]),
        (gpus(128), [128]),
        (gpus(129), [128, 1]),
        (gpus(1000), [128] * 7 + [104]),
        (PoolContent((*gpus(128).devices, {"name": "broken", "taints": [TAINT]})), [64, 64, 1]),
        (gpus(65, consumesCounters=[{"counterSet": "card"}]), [64, 1]),
        (gpus(65, attributes={"models": {"strings": ["a", "b"]}}), [64, 1]),
    ],
)
def test_a_slice_has_no_more_devices_than_an_api_server_accepts(content: PoolContent, sizes: list[int]) -> None:
    wanted = wanted_slices(POOL, content)
    assert [len(one["spec"].get("devices", ())) for one in wanted] == sizes
    assert [device for one in wanted for device in one["spec"].get("devices", ())] == list(content.devices)
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in wanted} == {len(sizes)}


def test_counter_sets_are_in_slices_of_their_own() -> None:
    sets = tuple({"name": f"card-{number}", "counters": {}} for number in range(17))
    wanted = wanted_slices(POOL, PoolContent(gpus(1).devices, sets))
    assert [sorted(one["spec"].keys() & {"devices", "sharedCounters"}) for one in wanted] == [
        ["sharedCounters"],
        ["sharedCounters"],
        ["sharedCounters"],
        ["devices"],
    ]
    assert [len(one["spec"].get("sharedCounters", ())) for one in wanted] == [8, 8, 1, 0]


def test_names_sort_by_index() -> None:
    names = [one["metadata"]["generateName"] for one in wanted_slices(POOL, gpus(128 * 20))]
    assert names == sorted(names)
    assert names[16] == "00010-gpu.example.com-n1-"


def test_a_pool_that_was_split_for_a_taint_stays_split(server: Server) -> None:
    tainted = PoolContent((*gpus(99).devices, {"name": "gpu-99", "taints": [TAINT]}))
    server.publish(gpus(100))
    server.publish(tainted)
    before = server.generations
    made = server.publish(gpus(100))
    assert (len(made.update), len(made.create), len(made.delete)) == (1, 0, 0)
    assert server.generations == before
    assert len(server.publish(tainted).update) == 1


def test_the_first_publication_has_generation_one(server: Server) -> None:
    made = server.publish(gpus(300))
    assert (made.generation, len(made.create), made.update, made.delete) == (1, 3, (), ())
    assert not server.publish(gpus(300))


def test_one_changed_slice_keeps_the_generation_and_two_do_not(server: Server) -> None:
    server.publish(gpus(300))
    one = PoolContent((*gpus(299).devices, {"name": "other"}))
    assert len(server.publish(one).update) == 1
    assert server.generations == [1, 1, 1]
    assert len(server.publish(PoolContent(one.devices[::-1])).update) == 3
    assert server.generations == [2, 2, 2]


def test_slices_of_an_older_generation_a_strange_name_or_another_pool_are_obsolete(server: Server) -> None:
    server.publish(gpus(200))
    older, strange, other = (deepcopy(server.slices[1]) for _ in range(3))
    older["metadata"] |= {"uid": "older"}
    older["spec"]["pool"]["generation"] = 0
    strange["metadata"] |= {"uid": "strange", "name": "by-hand"}
    other["metadata"] |= {"uid": "other"}
    other["spec"]["pool"]["name"] = "another"
    server.slices += [older, strange, other]
    made = server.publish(gpus(200))
    assert {one["metadata"]["uid"] for one in made.delete} == {"older", "strange", "other"}
    assert not server.publish(gpus(200))


def test_an_old_slice_alone_is_deleted_without_a_new_generation(server: Server) -> None:
    server.publish(gpus(1))
    server.publish(gpus(129))
    server.slices.append({**deepcopy(server.slices[0])})
    server.slices[-1]["metadata"] |= {"uid": "old"}
    server.slices[-1]["spec"]["pool"]["generation"] = 1
    made = server.publish(gpus(129))
    assert (len(made.delete), made.update, made.create) == (1, (), ())


def test_a_slice_with_another_owner_is_changed(server: Server) -> None:
    server.publish(gpus(1))
    server.slices[0]["metadata"]["ownerReferences"][0]["uid"] = "of a Node that was deleted"
    [updated] = server.publish(gpus(1)).update
    assert updated["metadata"]["ownerReferences"] == [POOL.owner]


def test_an_update_keeps_what_others_have_put_beside_it(server: Server) -> None:
    server.publish(gpus(1))
    server.slices[0]["metadata"]["annotations"] = {"a": "b"}
    [updated] = server.publish(gpus(2)).update
    assert updated["metadata"]["annotations"] == {"a": "b"}
    assert updated["metadata"]["resourceVersion"] == "1"


contents = st.integers(0, 300).flatmap(
    lambda number: st.sampled_from(
        [gpus(number), gpus(number, taints=[TAINT]), PoolContent(gpus(number).devices[::-1])]
    )
)


@given(st.lists(st.tuples(contents, st.integers(0, 4), st.booleans()), min_size=1, max_size=6))
def test_whatever_was_left_half_done_or_deleted_the_next_plan_makes_the_pool_complete(
    steps: list[tuple[PoolContent, int, bool]],
) -> None:
    server = Server()
    for content, most, is_wiped in steps:
        made = plan(server.slices, wanted_slices(POOL, content, server.slices))
        server.apply(made, most)
        if is_wiped:
            server.slices = server.slices[1:]
    content = steps[-1][0]
    server.publish(content)
    assert published_content(server.slices, "n1") == content
    assert not server.publish(content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (PoolContent(({"name": "a"}, {"name": "a"})), "a device must be in a pool once, got 'a' twice"),
        (PoolContent((), ({"name": "c"}, {"name": "c"})), "a counter set must be in a pool once, got 'c' twice"),
        (
            PoolContent(({"name": "a", "consumesCounters": [{"counterSet": "c", "counters": {}}]},)),
            "device 'a' consumes the counter set 'c', which is not in the pool",
        ),
        (
            PoolContent(
                ({"name": "a", "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": "1"}}}]},),
                ({"name": "c", "counters": {"slices": {"value": "7"}}},),
            ),
            "device 'a' consumes 'memory', which 'c' does not have",
        ),
    ],
)
def test_a_pool_that_no_scheduler_can_use_is_an_error(content: PoolContent, text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check(content)
    assert str(caught.value) == text


def spec(**device: Any) -> Document:
    return {"devices": [{"name": "a", **device}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spec(capacity={"memory": {"value": "1024Mi"}}), spec(capacity={"memory": {"value": "1Gi"}})),
        (spec(capacity={"memory": {"value": "1073741824"}}), spec(capacity={"memory": {"value": "1Gi"}})),
        (
            spec(capacity={"m": {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1", "2000m"]}}}),
            spec(capacity={"m": {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1", "2"]}}}),
        ),
        (
            spec(consumesCounters=[{"counterSet": "7", "counters": {"m": {"value": "1Ki"}}}]),
            spec(consumesCounters=[{"counterSet": "7", "counters": {"m": {"value": "1024"}}}]),
        ),
        (spec(attributes={}), spec()),
        (spec(taints=[{**TAINT, "value": ""}]), spec(taints=[TAINT])),
        ({"devices": []}, {}),
        (
            {"sharedCounters": [{"name": "c", "counters": {"m": {"value": "1Ki"}}}]},
            {"sharedCounters": [{"name": "c", "counters": {"m": {"value": "1024"}}}]},
        ),
    ],
)
def test_slices_that_mean_the_same_are_the_same(one: Document, other: Document) -> None:
    assert comparable(one) == comparable(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spec(attributes={"a": {"bool": False}}), spec(attributes={"a": {"bool": True}})),
        (spec(attributes={"a": {"string": "1Ki"}}), spec(attributes={"a": {"string": "1024"}})),
        (spec(capacity={"memory": {"value": "1G"}}), spec(capacity={"memory": {"value": "1Gi"}})),
        ({"devices": [{"name": "a"}, {"name": "b"}]}, {"devices": [{"name": "b"}, {"name": "a"}]}),
        (spec(taints=[TAINT]), spec(taints=[{**TAINT, "effect": "NoExecute"}])),
    ],
)
def test_slices_that_differ_are_not_the_same(one: Document, other: Document) -> None:
    assert comparable(one) != comparable(other)


@pytest.mark.parametrize(
    ("sent", "answered", "fields"),
    [
        (spec(taints=[TAINT]), spec(), {"taints"}),
        (spec(allowMultipleAllocations=True, bindsToNode=True), spec(), {"allowMultipleAllocations", "bindsToNode"}),
        (
            spec(capacity={"m": {"value": "1Gi", "requestPolicy": {"default": "1"}}}),
            spec(capacity={"m": {"value": "1024Mi"}}),
            {"requestPolicy"},
        ),
        ({"sharedCounters": [{"name": "c"}]}, {}, {"sharedCounters"}),
        (spec(attributes={"a": {"int": 1}}), spec(attributes={"a": {"int": 2}}), {"attributes"}),
        (spec(capacity={"m": {"value": "1Gi"}}), spec(capacity={"m": {"value": "1024Mi"}}), set()),
    ],
)
def test_fields_that_do_not_come_back_are_named(sent: Document, answered: Document, fields: set[str]) -> None:
    assert dropped_fields(sent, answered) == fields


def test_devices_that_are_unsafe_without_a_field_are_left_out() -> None:
    rehearsed = {"name": "rehearsed", "taints": [{**TAINT, "effect": "None"}]}
    tainted = {"name": "tainted", "taints": [TAINT]}
    part = {"name": "part", "consumesCounters": [{"counterSet": "c"}]}
    devices = ({"name": "plain"}, rehearsed, tainted, part)
    assert without(devices, frozenset()) == devices
    assert [one["name"] for one in without(devices, frozenset({"taints"}))] == ["plain", "rehearsed", "part"]
    assert [one["name"] for one in without(devices, frozenset({"consumesCounters"}))] == [
        "plain",
        "rehearsed",
        "tainted",
    ]
    assert [one["name"] for one in without(devices, frozenset({"sharedCounters"}))] == ["plain", "rehearsed", "tainted"]


def test_a_taint_keeps_its_time_and_a_new_one_has_none() -> None:
    timed = {**TAINT, "timeAdded": "2026-11-16T08:00:00Z"}
    times = taint_times([{"spec": {"devices": [{"name": "a", "taints": [timed]}, {"name": "b"}]}}])
    worse = {**TAINT, "effect": "NoExecute"}
    first, second = with_taint_times([{"name": "a", "taints": [TAINT, worse]}, {"name": "b", "taints": [TAINT]}], times)
    assert first["taints"] == [timed, worse]
    assert second["taints"] == [TAINT]


def stored(uid: str, version: int, **spec: Any) -> Document:
    metadata = {"uid": uid, "name": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"pool": {"name": "node"}, **spec}}


def test_a_watch_that_is_behind_takes_nothing_back() -> None:
    known = KnownSlices()
    known.answered(stored("a", 0), stored("a", 5, devices=[]))
    assert not known.change("ADDED", stored("a", 4))
    assert not known.change("ADDED", stored("a", 5))
    assert known.change("MODIFIED", stored("a", 6))
    known.removed("a")
    assert not known.change("MODIFIED", stored("a", 7))
    assert not known.change("DELETED", stored("a", 8))
    assert known.slices == {}


def test_repairs_are_soon_at_first_and_ever_later_where_somebody_goes_on() -> None:
    repairs, now, delays = Repairs(), 100.0, []
    for _ in range(12):
        delays.append(repairs.wait(now))
        now += delays[-1]
        assert repairs.wait(now) == 0
        repairs.done(now)
    assert delays[0] < 0.2
    assert sum(delays[:3]) < 1
    assert 20 < delays[-1] < 40
    assert repairs.wait(now + 200) < 0.2
