"""Waiting pods on the real scheduler: `why` names the cause, and its first cure lets the pod be bound.

The control plane is the real one; the nodes are objects whose heartbeats come from here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.explain.playing import Object, Player, named_case
from tests.kubernetes.control_plane import control_plane
from tests.kubernetes.schedulers import lease, node

from plugwright.apiserver import clock
from plugwright.errors import PeerRefused
from plugwright.kube.api_client import ApiClient

NODES = [node("node-1", "east"), node("node-2", "west")]
CASES = [
    "claim-all-devices", "claim-count", "claim-counters", "claim-first-available", "claim-held",
    "claim-incomplete-pool", "claim-match-attribute-held", "claim-missing-class", "claim-selector",
    "claim-selector-error", "claim-share", "claim-taint", "claim-template-count", "extended-by-claim", "count-held",
    "count-unknown-resource",
]  # fmt: skip
_GROUP = "/apis/resource.k8s.io/v1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEFT = (
    "/api/v1/namespaces/default/pods", f"{_GROUP}/namespaces/default/resourceclaims",
    f"{_GROUP}/namespaces/default/resourceclaimtemplates", f"{_GROUP}/resourceslices", f"{_GROUP}/deviceclasses",
)  # fmt: skip


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


@pytest.mark.timeout(600)
def test_the_first_cure_of_a_waiting_pod_lets_the_real_scheduler_bind_it(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        wrong = asyncio.run(play(plane.kubeconfig))
    assert wrong == {}


async def play(kubeconfig: Path) -> dict[str, str]:
    wrong: dict[str, str] = {}
    async with alive(kubeconfig):
        for name in CASES:
            player = Player(named_case(name), kubeconfig, is_bound)
            try:
                async with asyncio.timeout(60):
                    wrong |= await cured(player)
            except TimeoutError:
                wrong[name] = "the pod is not bound"
            finally:
                player.close()
                await clean(kubeconfig)
    return wrong


async def cured(player: Player) -> dict[str, str]:
    """What differs from the facts of the case."""
    case = player.case
    await player.apply()
    explanation = await player.explain()
    if case.fact("answer") not in explanation.answer or explanation.cures[0].kinds != case.kinds:
        return {case.name: str(explanation)}
    await player.make(explanation.cures[0])
    await player.runs()
    return {}


@asynccontextmanager
async def alive(kubeconfig: Path) -> AsyncIterator[None]:
    """The nodes exist, are Ready, and have heartbeats meanwhile; the first of them has ten `mock/gpu`."""
    api = ApiClient.of_kubeconfig(kubeconfig)
    try:
        for number, made in enumerate(NODES):
            name, offer = made["metadata"]["name"], {**made["status"]["capacity"]}
            offer |= {"mock/gpu": "10"} if number == 0 else {}
            status = {**made["status"], "capacity": offer, "allocatable": offer}
            await api.create("/api/v1/nodes", {**made, "status": status})
            await api.create(_LEASES, lease(name))
        beating = asyncio.create_task(beat(api))
        while any(found["spec"].get("taints") for found in (await api.list("/api/v1/nodes"))[0]):
            await asyncio.sleep(0.1)
        yield
        beating.cancel()
    finally:
        api.close()


async def beat(api: ApiClient) -> None:
    while True:
        for made in NODES:
            renewed = {"spec": {"renewTime": clock.micro_time(clock.now())}}
            await api.patch(f"{_LEASES}/{made['metadata']['name']}", renewed, "merge-patch")
        await asyncio.sleep(2)


async def clean(kubeconfig: Path) -> None:
    """Removes the objects of a case; those that a controller protects go once it has seen that."""
    api = ApiClient.of_kubeconfig(kubeconfig)
    try:
        for path in _LEFT:
            while left := (await api.list(path))[0]:
                for entry in left:
                    with suppress(PeerRefused):
                        await api.delete(f"{path}/{entry['metadata']['name']}", grace=0)
                await asyncio.sleep(0.1)
    finally:
        api.close()
