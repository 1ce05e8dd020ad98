"""How many Events are written, and that a repetition is counted in the one that exists."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kube.serving import served_api

from plugwright.kube.api_client import ApiClient, Document
from plugwright.node_events.device_changes import Notice, PodReference
from plugwright.node_events.event_recorder import EventBudget, NodeEventRecorder

EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with served_api(tmp_path) as served:
        client = served.client()
        yield client
        client.close()


async def written(client: ApiClient) -> list[Document]:
    return (await client.list(EVENTS))[0]


def test_a_budget_is_spent_at_once_and_comes_back_in_time() -> None:
    budget = EventBudget(2, 10.0, now=0.0)
    assert [budget.take(now) for now in (0.0, 1.0, 2.0, 9.0, 10.0, 11.0, 1000.0, 1000.0, 1000.0)] == [
        True, True, False, False, True, False, True, True, False,
    ]  # fmt: skip


async def test_a_repetition_is_counted_for_ten_minutes(client: ApiClient) -> None:
    times = iter((0.0, 0.0, 60.0, 600.0, 1300.0))  # the first one is that of the start
    recorder = NodeEventRecorder(client, "node", lambda: next(times))
    notice = Notice("DeviceFailed", "gpu-1 failed", "Warning")
    for _ in range(3):
        await recorder.record(notice)
    [event] = await written(client)
    assert event["count"] == 3
    await recorder.record(notice)
    assert sorted(event["count"] for event in await written(client)) == [1, 3]


async def test_a_repetition_of_an_expired_event_is_a_new_one(client: ApiClient) -> None:
    recorder, notice = NodeEventRecorder(client, "node", lambda: 0.0), Notice("DeviceFailed", "gpu-1 failed")
    await recorder.record(notice)
    [event] = await written(client)
    await client.delete(f"{EVENTS}/{event['metadata']['name']}")
    await recorder.record(notice)
    assert [event["count"] for event in await written(client)] == [1]


async def test_a_pod_that_flaps_does_not_spend_what_the_node_has(
    client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, pod = NodeEventRecorder(client, "node", lambda: 0.0), PodReference("default", "flapping", "1-2")
    for number in range(15):
        await recorder.record(Notice("DeviceFailed", f"failure {number}", "Warning", pod))
    await recorder.record(Notice("DeviceFailed", "gpu-1 failed", "Warning"))
    kinds = [event["involvedObject"]["kind"] for event in await written(client)]
    assert (kinds.count("Pod"), kinds.count("Node")) == (10, 1)
    assert caplog.text.count("event left out") == 5
