"""The log names the pod of each allocation, and says so where it cannot."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin, LogRecorder, recorded_log

from plugwright import Settings, serving
from plugwright.testing import pod_requesting

KNOWN, UNKNOWN, UNREADABLE = "allocated to pod", "allocated to a pod that is not known", "not attributed to pods"
REPEATED = "allocated to pods that are not known"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogRecorder]:
    with recorded_log("plugwright.sdk.audit", caplog) as log:
        yield log


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return replace(settings, timeouts=replace(settings.timeouts, audit=0.1))


def facts(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    """What each line with this message says, by the keys that JSON has."""
    keys = ("resource", "devices", "namespace", "pod", "container", "count", "reason")
    records = [vars(record) for record in caplog.records if record.getMessage() == message]
    return [{key: record[key] for key in keys if key in record} for record in records]


async def test_each_container_with_its_pod_is_one_line(
    kubelet: ObservedKubelet, quick: Settings, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(30), serving(ListingPlugin(TAPE, "st0", "st1", "st2"), settings=quick):
        await kubelet.endpoint(TAPE, 3)
        await kubelet.kubelet.admit(pod_requesting({"one": {TAPE: 2}, "two": {TAPE: 1}}, name="reader"))
        await log.until(KNOWN, times=2)
    one, two = sorted(facts(caplog, KNOWN), key=lambda line: str(line["container"]))
    holder = {"resource": TAPE, "namespace": "default", "pod": "reader"}
    assert one.pop("devices") != two.pop("devices")
    assert (one, two) == ({**holder, "container": "one"}, {**holder, "container": "two"})
    assert facts(caplog, UNKNOWN) == []


async def test_an_allocation_that_no_pod_keeps_is_given_up_after_three_questions(
    kubelet: ObservedKubelet, quick: Settings, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(30), serving(ListingPlugin(), settings=quick):
        tape = await kubelet.endpoint(TAPE, 2)
        await tape.client.allocate(["st1", "st0"])  # nobody's
        await log.until(UNKNOWN)
    [line] = facts(caplog, UNKNOWN)
    assert (line["devices"], line["reason"]) == (
        ["st0", "st1"],
        "no pod holds its devices: the pod was refused, or has ended",
    )


async def test_a_pod_that_the_kubelet_lists_late_is_still_named(
    kubelet: ObservedKubelet, quick: Settings, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    socket = kubelet.paths.pod_resources_socket
    hidden = socket.with_name("hidden")
    async with asyncio.timeout(30), serving(ListingPlugin(), settings=quick):
        await kubelet.endpoint(TAPE, 2)
        socket.rename(hidden)
        await kubelet.kubelet.admit(pod_requesting({TAPE: 1}, name="late"))
        await log.until(UNREADABLE)
        hidden.rename(socket)
        await log.until(KNOWN)
    assert [line["pod"] for line in facts(caplog, KNOWN)] == ["late"]
    assert facts(caplog, UNKNOWN) == []


async def test_a_device_that_is_allocated_again_is_asked_for_once(
    kubelet: ObservedKubelet, quick: Settings, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(30), serving(ListingPlugin(), settings=quick):
        tape = await kubelet.endpoint(TAPE, 2)
        await tape.client.allocate(["st0", "st1"])
        await kubelet.kubelet.admit(pod_requesting({TAPE: 1}, name="second"))
        await log.until(KNOWN)
        await log.until(REPEATED)
    [first], [second] = facts(caplog, REPEATED), facts(caplog, KNOWN)
    assert (first["count"], "allocated again" in str(first["reason"])) == (1, True)
    assert (second["pod"], facts(caplog, UNKNOWN)) == ("second", [])


async def test_a_kubelet_that_cannot_be_asked_is_one_warning(
    kubelet: ObservedKubelet, quick: Settings, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(30), serving(ListingPlugin(), settings=quick):
        tape = await kubelet.endpoint(TAPE, 2)
        kubelet.paths.pod_resources_socket.unlink()
        await tape.client.allocate(["st0"])
        await log.until(UNKNOWN)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["allocations not attributed to pods"]
    [line] = facts(caplog, UNKNOWN)
    assert str(line["reason"]).startswith("pod-resources cannot be read: ")


async def test_a_daemon_that_ends_does_not_wait_for_pods(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with asyncio.timeout(20):  # the question would come after 2 s, the last after 42
        async with serving(ListingPlugin(), settings=replace(settings, timeouts=replace(settings.timeouts, audit=60))):
            tape = await kubelet.endpoint(TAPE, 2)
            await tape.client.allocate(["st0"])
