"""The store: resource versions, conflicts, changes that watchers read, and lists of an earlier revision."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.store import DryRun, Object, ObjectKey, Store
from plugwright.errors import AlreadyExists, Expired, NotFound, VersionConflict


def key(name: str, kind: str = "pods", namespace: str = "default") -> ObjectKey:
    return ObjectKey(kind, namespace, name)


def thing(name: str, **members: object) -> Object:
    return {"metadata": {"name": name}, **members}


def test_every_write_gets_the_next_resource_version() -> None:
    store = Store()
    versions = [store.create(key(name), thing(name))["metadata"]["resourceVersion"] for name in "abc"]
    assert versions == ["2", "3", "4"]
    assert store.revision == 4


def test_existing_objects_cannot_be_created_and_missing_ones_not_read_or_changed() -> None:
    store = Store()
    store.create(key("a"), thing("a"))
    with pytest.raises(AlreadyExists):
        store.create(key("a"), thing("a"))
    for write in (store.require, store.delete, lambda missing: store.update(missing, thing("b"))):
        with pytest.raises(NotFound, match='pods "b" not found'):
            write(key("b"))


def test_an_update_from_an_older_version_is_a_conflict() -> None:
    store = Store()
    seen = store.create(key("a"), thing("a"))["metadata"]["resourceVersion"]
    store.update(key("a"), thing("a", spec=1), seen)
    with pytest.raises(VersionConflict):
        store.update(key("a"), thing("a", spec=2), seen)
    assert store.require(key("a"))["spec"] == 1


def test_an_update_that_changes_nothing_makes_no_revision() -> None:
    store = Store()
    created = store.create(key("a"), thing("a", spec={"x": [1]}))
    assert store.update(key("a"), thing("a", spec={"x": [1]})) is created


async def test_a_watcher_reads_every_change_once_and_in_order() -> None:
    store = Store()
    since = store.revision
    waiting = asyncio.create_task(store.changes(since))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.create(key("a"), thing("a"))
    store.update(key("a"), thing("a", spec=1))
    store.delete(key("a"))
    changes = await waiting
    assert [(change.type, change.key.name) for change in changes] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    assert [change.revision for change in changes] == [2, 3, 4]
    assert changes[2].object["metadata"]["resourceVersion"] == "4"
    assert await store.changes(changes[-1].revision, timeout=0) == []


async def test_changes_before_the_history_are_expired() -> None:
    store = Store(history=3)
    for number in range(5):
        store.create(key(f"p{number}"), thing(f"p{number}"))
    assert [change.key.name for change in await store.changes(3)] == ["p2", "p3", "p4"]
    for since in (1, 2, 99):
        with pytest.raises(Expired):
            await store.changes(since)


def test_a_dry_run_answers_and_stores_nothing() -> None:
    store = Store()
    created = store.create(key("a"), thing("a"))
    dry_run = DryRun(store)
    assert dry_run.create(key("b"), thing("b")) == thing("b")
    changed = dry_run.update(key("a"), thing("a", spec=1))
    assert (changed["spec"], changed["metadata"]["resourceVersion"]) == (1, created["metadata"]["resourceVersion"])
    assert dry_run.delete(key("a")) is created
    with pytest.raises(AlreadyExists):
        dry_run.create(key("a"), thing("a"))
    with pytest.raises(VersionConflict):
        dry_run.update(key("a"), thing("a"), "1")
    assert ([*store.objects("pods")], store.revision) == ([created], 2)


names = st.sampled_from("abc")
writes = st.tuples(
    st.sampled_from(["create", "update", "delete"]), names, st.sampled_from(["pods", "nodes"]), st.integers()
)


@given(st.lists(writes, max_size=25), st.integers(0, 3))
def test_objects_at_an_earlier_revision_are_as_they_were(
    history: list[tuple[str, str, str, int]], unpacked: int
) -> None:
    store, seen = Store(unpacked=unpacked), {}
    for verb, name, kind, value in history:
        seen[store.revision] = [*store.objects("pods")]
        exists = store.get(key(name, kind)) is not None
        if verb == "create" and not exists:
            store.create(key(name, kind), thing(name, spec=value))
        elif verb == "update" and exists:
            store.update(key(name, kind), thing(name, spec=value))
        elif verb == "delete" and exists:
            store.delete(key(name, kind))
    for revision, listed in seen.items():
        assert [*store.objects_at(revision, "pods")] == listed


BOUND = st.tuples(st.sampled_from("abc"), st.sampled_from(("", "n1", "n2")))


@given(st.lists(BOUND, max_size=12))
def test_the_pods_of_a_node_are_those_that_a_search_finds(writes: list[tuple[str, str]]) -> None:
    store = Store()
    for name, node in writes:
        pod = thing(name, spec={"nodeName": node} if node else {})
        if store.get(key(name)) is None:
            store.create(key(name), pod)
        elif node:
            store.update(key(name), pod)
        else:
            store.delete(key(name))
        for sought in ("n1", "n2"):
            found = [pod for pod in store.objects("pods") if pod["spec"].get("nodeName") == sought]
            assert [*store.bound_pods(sought)] == found


@pytest.mark.parametrize("kind", ["events", "nodes", "pods"])
def test_an_object_that_is_packed_is_read_as_it_was_written(kind: str) -> None:
    store = Store(unpacked=0)
    content = thing(
        "a", count=1, series=None, eventTime="2026-11-15T12:00:00.000000Z", nested={"list": [1.5, "ü", True]}
    )
    written = store.create(key("a", kind=kind), content)
    assert store.get(key("a", kind=kind)) == written == store.objects(kind)[0]
    store.update(key("a", kind=kind), thing("a"))
    store.delete(key("a", kind=kind))
    assert [*store.objects_at(2, kind)] == [written]


def test_keys_and_versions_are_those_of_the_objects() -> None:
    store = Store(unpacked=0)
    for name in "ba":
        store.create(key(name, kind="nodes"), thing(name))
    changed = store.update(key("b", kind="nodes"), thing("b", spec=1))
    assert store.keys("nodes") == (key("b", kind="nodes"), key("a", kind="nodes"))
    assert store.version(key("b", kind="nodes")) == changed["metadata"]["resourceVersion"] == "4"
    assert (store.version(key("c", kind="nodes")), store.keys("pods")) == (None, ())


@pytest.mark.asyncio
async def test_a_reader_that_is_behind_gets_packed_changes() -> None:
    store = Store(unpacked=0)
    first = store.create(key("a"), thing("a", spec=1))
    second = store.update(key("a"), thing("a", spec=2))
    changes = await store.changes(1)
    assert [(change.object, change.before) for change in changes] == [(first, None), (second, first)]
