"""What the real scheduler makes of our slices: simulated GPUs, by place, by part and by counter. No pod has to run."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

Serve = Callable[..., Claims]


@pytest.fixture
def serve(cluster: Cluster, plugins: Plugins, pods: Pods) -> Iterator[Serve]:
    """Simulated GPUs by claims, and the class for them."""
    made: list[Claims] = []

    def started(name: str, count: int, extended: str = "", **nvidia: object) -> Claims:
        plugins.run({f"example.com/{name}": {"nvidia": nvidia, "serve": "dra"}})
        claims = Claims(cluster.kubectl, f"{name}.example.com", extended)
        made.append(claims)
        claims.published(count)
        return claims

    yield started
    cluster.revive()
    pods.end()
    for claims in made:
        claims.end()


def allocated(claims: Claims, count: int) -> dict[str, list[str]]:
    until(f"{count} claims are allocated", lambda: len(claims.allocated()) == count, last=claims.allocated)
    return claims.allocated()


def waits(claims: Claims, pod: str, text: str = "cannot allocate all claims") -> None:
    """The scheduler has tried, and says why not."""
    until(
        f"{pod} waits", lambda: text in str(claims.kubectl.get("pod", pod)), last=lambda: claims.kubectl.get("pod", pod)
    )


def selected(expression: str) -> list[Mapping[str, Any]]:
    return [{"cel": {"expression": expression}}]


@pytest.mark.essential
def test_claims_of_60_60_and_40_gib_on_one_card(serve: Serve, cluster: Cluster) -> None:
    library = cluster.state / "limiter"
    library.mkdir(exist_ok=True)
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (library / soname).touch()
    vgpu = {"builtin": str(library), "root": str(cluster.state / "vgpu")}
    share = {"by": "vgpu", "memory": "20Gi", "vgpu": vgpu}
    claims = serve("parts", 1, simulate="h200", strategy="device-nodes", share=share)
    [device] = claims.devices().values()
    assert device["allowMultipleAllocations"]
    for number, gibibytes in enumerate((60, 60, 40)):
        claims.claim(f"part-{number}", claims.request(capacity={"requests": {"memory": f"{gibibytes}Gi"}}))
        claims.pod(f"pod-{number}", claims=[f"part-{number}"])
        if number < 2:
            allocated(claims, number + 1)
    waits(claims, "pod-2")
    results = [claims.results(f"part-{number}") for number in range(2)]
    assert [result["consumedCapacity"]["memory"] for [result] in results] == ["60Gi", "60Gi"]
    assert len({result["shareID"] for [result] in results}) == 2


def test_two_gpus_on_one_pcie_root(serve: Serve) -> None:
    claims = serve("roots", 16, simulate="dgx-2")
    roots = {name: found["attributes"]["resource.kubernetes.io/pcieRoot"] for name, found in claims.devices().items()}
    same = {"requests": ["gpus"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    claims.claim("pair", claims.request("gpus", count=2), constraints=[same])
    claims.pod("pair", claims=["pair"])
    [pair] = allocated(claims, 1).values()
    assert len(pair) == 2
    assert len({str(roots[name]) for name in pair}) == 1
    claims.claim("too-many", claims.request("gpus", count=16), constraints=[same])
    claims.pod("too-many", claims=["too-many"])
    waits(claims, "too-many")


def test_a_selector_by_a_missing_attribute_is_an_error_and_a_guarded_one_is_not(serve: Serve) -> None:
    claims = serve("selected", 8, simulate="hgx-h100")
    own = f'device.attributes["{claims.driver}"]'
    claims.claim("bare", claims.request(selectors=selected(f'{own}.nothing == "x"')))
    claims.pod("bare", claims=["bare"])
    waits(claims, "bare", "no such key: nothing")
    ported = 'device.attributes["gpu.nvidia.com"].?architecture.orValue("") == "Hopper"'
    claims.claim("guarded", claims.request(selectors=selected(ported)))
    claims.pod("guarded", claims=["guarded"])
    allocated(claims, 1)


def test_mig_devices_are_chosen_by_their_profile(serve: Serve) -> None:
    claims = serve("cut", 56, simulate="hgx-h100-mig", mig="single")
    profile = f'device.attributes["{claims.driver}"].?profile.orValue("") == "1g.10gb"'
    claims.claim("seven", claims.request(selectors=selected(profile), count=7))
    claims.pod("seven", claims=["seven"])
    [seven] = allocated(claims, 1).values()
    assert len(seven) == 7


def test_more_than_32_devices_are_too_many_for_one_pod(serve: Serve, pods: Pods) -> None:
    claims = serve("crowd", 56, "example.com/crowd", simulate="hgx-h100-mig", mig="single")
    pods.create("crowd", {"example.com/crowd": 33})
    waits(claims, "crowd", "exceeds the claim limit of 32")
