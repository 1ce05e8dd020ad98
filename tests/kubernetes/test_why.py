"""Waiting pods on the real scheduler: `why` names the cause, and its first cure lets the pod be bound.

The control plane is the real one; the nodes are objects whose heartbeats come from here.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.explain.playing import CASES, ONLY_ON_KUBERNETES, ONLY_WITH_KUBELETS, Case, Object, Player, named_case
from tests.kubernetes.control_plane import control_plane
from tests.kubernetes.schedulers import lease, node

from plugwright.apiserver import clock
from plugwright.errors import PeerRefused
from plugwright.kube.api_client import ApiClient

NODES = [node("node-1", "east"), node("node-2", "west")]
# Played for every change; the full run plays all cases, at both versions.
ESSENTIAL = [
    "claim-all-devices", "claim-count", "claim-counters", "claim-first-available", "claim-held",
    "claim-incomplete-pool", "claim-match-attribute-held", "claim-missing-class", "claim-selector-error",
    "claim-share", "claim-taint", "claim-template-count", "extended-by-claim", "count-held", "count-unknown-resource",
]  # fmt: skip
# Its allocation is written by hand: kube-scheduler does not try the pod again when such a claim is deleted.
_BY_HAND = ["claim-unused"]
OTHERS = [name for name in (*CASES, *ONLY_ON_KUBERNETES) if name not in (*ESSENTIAL, *ONLY_WITH_KUBELETS, *_BY_HAND)]
_GROUP = "/apis/resource.k8s.io/v1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEFT = (
    "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/resourcequotas",
    f"{_GROUP}/namespaces/default/resourceclaims",
    f"{_GROUP}/namespaces/default/resourceclaimtemplates", f"{_GROUP}/resourceslices", f"{_GROUP}/deviceclasses",
)  # fmt: skip


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


@pytest.mark.timeout(900)
def test_the_first_cure_of_a_waiting_pod_lets_the_real_scheduler_bind_it(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        wrong = asyncio.run(play(plane.kubeconfig, ESSENTIAL))
    assert wrong == {}


@pytest.mark.full("every other case, and the rejected changes of all")
@pytest.mark.timeout(3000)
def test_the_other_cases_and_every_rejected_change_on_the_real_scheduler(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        wrong = asyncio.run(play(plane.kubeconfig, OTHERS, is_rejecting=True))
        wrong |= asyncio.run(play(plane.kubeconfig, [*ESSENTIAL, *OTHERS], is_rejecting=True, is_curing=False))
    assert wrong == {}


async def play(
    kubeconfig: Path, names: Sequence[str], *, is_rejecting: bool = False, is_curing: bool = True
) -> dict[str, str]:
    wrong: dict[str, str] = {}
    async with alive(kubeconfig):
        for name in names:
            case = named_case(name)
            plays = [cured] if is_curing else [rejected] if case.fact("rejected") else []
            for each in plays:
                player = Player(case, kubeconfig, is_bound)
                try:
                    async with asyncio.timeout(60), broken(kubeconfig, case):
                        wrong |= await each(player)
                except TimeoutError:
                    wrong[name] = f"not {each.__name__} in time"
                finally:
                    player.close()
                    await clean(kubeconfig)
    return wrong


async def cured(player: Player) -> dict[str, str]:
    """What differs from the facts of the case, and whether the first cure suffices."""
    case = player.case
    await player.apply()
    explanation = await player.explain()
    kinds = explanation.cures[0].kinds if explanation.cures else ()
    if case.fact("answer") not in explanation.answer or kinds != case.kinds:
        return {case.name: str(explanation)}
    if explanation.cures:
        await player.make(explanation.cures[0])
        await player.runs()
    return {}


async def rejected(player: Player) -> dict[str, str]:
    """Whether the pod still waits after the best change that the engine has rejected."""
    case = player.case
    await player.apply()
    explanation = await player.explain()
    if not explanation.rejected or explanation.rejected[0].kinds != (case.fact("rejected"),):
        return {case.name: str(explanation)}
    await player.make(explanation.rejected[0])
    return {} if await player.waits() else {case.name: f"runs after {explanation.rejected[0].text}"}


@asynccontextmanager
async def broken(kubeconfig: Path, case: Case) -> AsyncIterator[None]:
    """The devices that a case wants unhealthy or cordoned are not offered, as a kubelet would report it."""
    setups = [setup.split() for setup in case.all("setup") if not setup.startswith("allocate ")]
    api = ApiClient.of_kubeconfig(kubeconfig)
    try:
        for number, made in enumerate(NODES):
            name = made["metadata"]["name"]
            missing = sum(int(count) for _, node_name, count in setups if node_name == name)
            has = {"mock/gpu": "10"} if number < int(case.fact("nodes")) else {"mock/gpu": None}
            offered = {"mock/gpu": str(10 - missing)} if number < int(case.fact("nodes")) else has
            status = {"capacity": has, "allocatable": offered}
            await api.patch(f"/api/v1/nodes/{name}/status", {"status": status}, "merge-patch")
        yield
    finally:
        api.close()


@asynccontextmanager
async def alive(kubeconfig: Path) -> AsyncIterator[None]:
    """The nodes exist, are Ready, and have heartbeats meanwhile."""
    api = ApiClient.of_kubeconfig(kubeconfig)
    try:
        for made in NODES:
            with suppress(PeerRefused):  # they exist since the first cases
                await api.create("/api/v1/nodes", made)
                await api.create(_LEASES, lease(made["metadata"]["name"]))
        beating = asyncio.create_task(beat(api))
        try:
            while any(found["spec"].get("taints") for found in (await api.list("/api/v1/nodes"))[0]):
                await asyncio.sleep(0.1)
            yield
        finally:
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
        for made in NODES:
            spec = {"unschedulable": None, "taints": None}
            path = f"/api/v1/nodes/{made['metadata']['name']}"
            await api.patch(path, {"spec": spec, "metadata": {"labels": {"zone": None}}}, "merge-patch")
    finally:
        api.close()
