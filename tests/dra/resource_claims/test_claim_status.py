"""What owners of claims read in their status; an API server that does not take it costs nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.dra.resource_claims.claim_node import DRIVER, ClaimNode, claim, document

from plugwright import Device, Plugin
from plugwright.dra.resource_claims.claim_status import ClaimStatus, status_patch
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused
from plugwright.system.latest import Latest
from plugwright.testing import claim_requesting, pod_requesting
from plugwright.testing import running as running_plugin

CLAIM = AllocatedClaim(
    "default",
    "one",
    "u-1",
    (
        AllocatedDevice("watch", "node-1", "st0", admin_access=True),
        AllocatedDevice("tape", "node-1", "st0"),
        AllocatedDevice("part", "node-1", "card", share_id="s-1"),
    ),
)


@dataclass
class Patches:
    """An API server that takes patches, or answers with `error`; `asked` counts all requests."""

    error: Exception | None = None
    taken: list[tuple[str, Any, str, dict[str, str]]] = field(default_factory=list)
    asked: Latest[int] = field(default_factory=lambda: Latest(0))

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Mapping[str, object]:
        try:
            if self.error is not None:
                raise self.error
            self.taken.append((path, body, kind, query))
            return {}
        finally:
            self.asked.publish(self.asked.value + 1)


@asynccontextmanager
async def running(status: ClaimStatus) -> AsyncIterator[None]:
    task = asyncio.create_task(status.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def test_each_device_of_the_driver_has_a_condition_once() -> None:
    patch = status_patch(CLAIM, DRIVER, "device st0 is\nUnhealthy", 0)
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "Waiting",
        "message": "device st0 is Unhealthy",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
    named = {"driver": DRIVER, "pool": "node-1"}
    assert patch["metadata"] == {"name": "one", "namespace": "default", "uid": "u-1"}
    assert patch["status"] == {
        "devices": [
            {**named, "device": "st0", "conditions": [condition]},
            {**named, "device": "card", "shareID": "s-1", "conditions": [condition]},
        ]
    }


async def test_a_claim_that_waits_and_is_prepared_says_so(node: ClaimNode) -> None:
    api = Patches()
    status = ClaimStatus(api, DRIVER)
    node = node.restart(report=status.report)
    node.drives.refusals["st0"] = "busy"
    node.api.put(document())
    async with running(status):
        await node.prepare(claim())
        await api.asked.until(lambda asked: asked == 1)
        node.drives.refusals.clear()
        for _ in range(2):
            await node.prepare(claim())
        await api.asked.until(lambda asked: asked == 2)
    (waiting, ready) = [body["status"]["devices"][0]["conditions"][0] for _, body, _, _ in api.taken]
    assert waiting["message"] == "device st0 cannot be given to a claim: busy"
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", "Prepared", "")
    path, _, kind, query = api.taken[0]
    assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one/status"
    assert (kind, query) == ("apply-patch", {"fieldManager": DRIVER, "force": "true"})


async def test_a_refusal_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    api = Patches()
    status = ClaimStatus(api, DRIVER)
    async with running(status):
        for number in range(3):
            api.error = PeerRefused("Invalid", f"claim {number}: not authorized to associated-node:patch")
            status.report(replace(CLAIM, uid=f"u-{number}"), "")
            await api.asked.until(lambda asked, number=number: asked == number + 1)  # type: ignore[misc]
        assert caplog.text.count("status of claims not written") == 1
        assert "associated-node:patch" in status.problem
        api.error = None
        status.report(replace(CLAIM, uid="u-9"), "")
        await api.asked.until(lambda asked: asked == 4)
    assert status.problem == ""


@pytest.mark.parametrize("code", ["NotFound", "Conflict"])
async def test_a_claim_that_is_gone_is_no_problem(code: str) -> None:
    api = Patches(PeerRefused(code, "gone"))
    status = ClaimStatus(api, DRIVER)
    async with running(status):
        status.report(CLAIM, "")
        await api.asked.until(lambda asked: asked == 1)
    assert status.problem == ""


@pytest.mark.parametrize("error", [PeerGone("refused"), MalformedMessage("an HTML page"), ConfigError("no token")])
async def test_the_latest_words_are_written_when_the_api_server_is_back(error: Exception) -> None:
    api = Patches(error)
    status = ClaimStatus(api, DRIVER)
    async with running(status):
        status.report(CLAIM, "busy")
        await api.asked.until(lambda asked: asked == 1)
        status.report(CLAIM, "")
        api.error = None
        await api.asked.until(lambda asked: asked == 2)
    ((_, body, _, _),) = api.taken
    assert body["status"]["devices"][0]["conditions"][0]["status"] == "True"


async def test_claims_without_devices_of_this_driver_have_no_status() -> None:
    api = Patches()
    status = ClaimStatus(api, DRIVER)
    async with running(status):
        status.report(replace(CLAIM, results=()), "")
        status.report(CLAIM, "")
        await api.asked.until(lambda asked: asked == 1)
    assert len(api.taken) == 1


async def test_a_drivers_claims_have_a_status(tmp_path: Path) -> None:
    class Tape(Plugin):
        resource = "example.com/tape"

        async def discover(self) -> AsyncIterator[Sequence[Device]]:
            yield [Device("st0")]

    async with running_plugin(Tape(), tmp_path, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({Tape.resource: 1}, name="drive")]))

        def reported() -> list[dict[str, Any]]:
            claim = kubelet.api.stored_claim("default", "drive")
            return claim["status"].get("devices") or [] if claim else []

        assert await kubelet.api.until(lambda: bool(reported()), 30)
        assert [(device["device"], device["conditions"][0]["status"]) for device in reported()] == [("st0", "True")]
