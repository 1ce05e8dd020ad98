"""The store: versions, conflicts, what watchers read, and lists of an earlier moment."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.cluster.store import AlreadyExists, DryRun, Expired, NotFound, Object, ObjectKey, Store, VersionConflict


def key(name: str, kind: str = "pods", namespace: str = "default") -> ObjectKey:
    return ObjectKey(kind, namespace, name)


def thing(name: str, **members: object) -> Object:
    return {"metadata": {"name": name}, **members}


def test_every_write_has_a_version_of_its_own() -> None:
    store = Store()
    versions = [store.create(key(name), thing(name))["metadata"]["resourceVersion"] for name in "abc"]
    assert versions == ["2", "3", "4"]
    assert store.revision == 4


def test_what_is_there_is_not_made_again_and_what_is_not_there_is_missing() -> None:
    store = Store()
    store.create(key("a"), thing("a"))
    with pytest.raises(AlreadyExists):
        store.create(key("a"), thing("a"))
    for act in (store.require, store.delete, lambda missing: store.update(missing, thing("b"))):
        with pytest.raises(NotFound, match='pods "b" not found'):
            act(key("b"))


def test_a_writer_who_saw_an_older_version_is_refused() -> None:
    store = Store()
    seen = store.create(key("a"), thing("a"))["metadata"]["resourceVersion"]
    store.update(key("a"), thing("a", spec=1), seen)
    with pytest.raises(VersionConflict):
        store.update(key("a"), thing("a", spec=2), seen)
    assert store.require(key("a"))["spec"] == 1


def test_an_update_that_changes_nothing_is_none() -> None:
    store = Store()
    made = store.create(key("a"), thing("a", spec={"x": [1]}))
    assert store.update(key("a"), thing("a", spec={"x": [1]})) is made


async def test_a_watcher_reads_each_change_once_and_in_order() -> None:
    store = Store()
    since = store.revision
    waiting = asyncio.create_task(store.changes(since))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.create(key("a"), thing("a"))
    store.update(key("a"), thing("a", spec=1))
    store.delete(key("a"))
    changes = await waiting
    assert [(each.type, each.key.name) for each in changes] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [each.revision for each in changes] == [2, 3, 4]
    assert changes[2].object["metadata"]["resourceVersion"] == "4"
    assert await store.changes(changes[-1].revision, timeout=0) == []


async def test_who_is_too_far_behind_has_to_list_again() -> None:
    store = Store(history=3)
    for number in range(5):
        store.create(key(f"p{number}"), thing(f"p{number}"))
    assert [each.key.name for each in await store.changes(3)] == ["p2", "p3", "p4"]
    for since in (1, 2, 99):
        with pytest.raises(Expired):
            await store.changes(since)


def test_a_rehearsal_answers_and_keeps_nothing() -> None:
    store = Store()
    made = store.create(key("a"), thing("a"))
    rehearsal = DryRun(store)
    assert rehearsal.create(key("b"), thing("b")) == thing("b")
    changed = rehearsal.update(key("a"), thing("a", spec=1))
    assert (changed["spec"], changed["metadata"]["resourceVersion"]) == (1, made["metadata"]["resourceVersion"])
    assert rehearsal.delete(key("a")) is made
    with pytest.raises(AlreadyExists):
        rehearsal.create(key("a"), thing("a"))
    with pytest.raises(VersionConflict):
        rehearsal.update(key("a"), thing("a"), "1")
    assert (store.objects("pods"), store.revision) == ([made], 2)


names = st.sampled_from("abc")
writes = st.tuples(
    st.sampled_from(["create", "update", "delete"]), names, st.sampled_from(["pods", "nodes"]), st.integers()
)


@given(st.lists(writes, max_size=25))
def test_an_earlier_moment_is_listed_as_it_was(history: list[tuple[str, str, str, int]]) -> None:
    store, seen = Store(), {}
    for act, name, kind, value in history:
        seen[store.revision] = store.objects("pods")
        exists = store.get(key(name, kind)) is not None
        if act == "create" and not exists:
            store.create(key(name, kind), thing(name, spec=value))
        elif act == "update" and exists:
            store.update(key(name, kind), thing(name, spec=value))
        elif act == "delete" and exists:
            store.delete(key(name, kind))
    for revision, listed in seen.items():
        assert store.objects_at(revision, "pods") == listed
