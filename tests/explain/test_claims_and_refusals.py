"""`why` for claims, for pods that the kubelet refused, and with less than everything to read."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.explain.worlds import CLASS, claim, device, node, pod, published

from plugwright.errors import PeerRefused
from plugwright.explain.claim_answers import explain_claim
from plugwright.explain.explanation import explain_pod, first_line
from plugwright.explain.reading import read_world
from plugwright.explain.world import ApiObject, World

UNAVAILABLE = "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1"
ONE = (published(device("a")),)


def refused(reason: str, message: str) -> ApiObject:
    status = {"phase": "Failed", "reason": reason, "message": message}
    return {**pod("w", 2, on="n1"), "status": status}


def test_an_allocated_claim_names_its_devices_and_pods() -> None:
    world = World((node("n1"),), (pod("p", on="n1", claim="c"),), ONE, (CLASS,), (claim("c", "a", ("p",)),))
    found = explain_claim(world, world.claims[0])
    assert (found.state, found.claim) == ("runs", "c")
    assert found.answer == "has gpu.example.com/n1/a, reserved for p"


def test_a_claim_that_a_finished_pod_reserves_is_named() -> None:
    ended = {**pod("p", on="n1", claim="c"), "status": {"phase": "Succeeded"}}
    world = World((node("n1"),), (ended,), ONE, (CLASS,), (claim("c", "a", ("p",)),))
    assert "p has ended and still reserves it" in explain_claim(world, world.claims[0]).answer


def test_a_finished_pod_that_reserves_a_claim_is_the_cheapest_cure() -> None:
    ended = {**pod("p", on="n1", claim="c"), "status": {"phase": "Succeeded"}}
    claims = (claim("c", "a", ("p",)), claim("d"))
    world = World((node("n1"),), (ended, pod("w", claim="d")), ONE, (CLASS,), claims)
    assert explain_pod(world, world.pods[-1]).cures[0].kinds == ("finished-pod",)


def test_a_waiting_claim_is_explained_by_its_pod() -> None:
    world = World((node("n1"),), (pod("w", claim="c"),), ONE, (CLASS,), (claim("c", count=2),))
    found = explain_claim(world, world.claims[0])
    assert (found.state, found.pod, found.claim) == ("waits", "w", "c")
    assert "at most 1 of 2 devices together" in found.answer


def test_a_claim_without_a_pod_is_told_whether_it_could_be_allocated() -> None:
    world = World((node("n1"),), (), ONE, (CLASS,), (claim("c"), claim("d", count=2)))
    assert (
        explain_claim(world, world.claims[0]).answer
        == "waits: no pod uses it; if one did: fits now: n1 has its devices"
    )
    assert "at most 1 of 2" in explain_claim(world, world.claims[1]).answer


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "UnexpectedAdmissionError",
            f"Pod was rejected: Allocate failed due to {UNAVAILABLE}, which is unexpected",
            "1 of 2 example.com/gpu were healthy and free",
        ),
        (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = no file, which is unexpected",
            "the device plugin failed: no file",
        ),
        ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality", "NUMA"),
    ],
)
def test_a_refused_pod_is_explained_with_the_count_of_the_kubelet(reason: str, message: str, words: str) -> None:
    world = World((node("n1", 2),), (refused(reason, message),))
    found = explain_pod(world, world.pods[0])
    assert found.state == "refused"
    assert words in found.answer
    assert found.cures[0].kinds == ("recreate",)


def test_a_refused_pod_that_fits_nowhere_now_says_so() -> None:
    world = World((node("n1", 2),), (pod("h", 2, "n1"), refused("TopologyAffinityError", "")))
    found = explain_pod(world, world.pods[-1])
    assert "; now no node has 2 free example.com/gpu" in found.answer
    assert found.cures[0].kinds == ("holder-ends",)


def test_free_devices_on_two_numa_nodes_are_told_apart_with_a_report() -> None:
    devices: list[dict[str, Any]] = [{"id": str(one), "numa": [one % 2], "health": "Healthy"} for one in range(4)]
    report = {
        "kubelet": {"topologyManagerPolicy": "single-numa-node"},
        "resources": [{"name": "example.com/gpu", "devices": devices}],
    }
    for one in (0, 1):
        devices[one]["holders"] = [{"namespace": "default", "pod": f"h{one}"}]
    holders = tuple(pod(f"h{one}", 1, "n1") for one in (0, 1))
    world = World((node("n1", 4),), (*holders, pod("w", 2)), reports={"n1": report})
    found = explain_pod(world, world.pods[-1])
    assert found.answer == "waits: no node has 2 free example.com/gpu on one NUMA node (n1 has 2 free, 1 + 1)"
    assert {cure.kinds for cure in found.cures} >= {("holder-ends",), ("count",)}
    assert not any("NodeReport" in entry for entry in found.unseen)


def test_the_first_line_needs_no_search() -> None:
    world = World((node("n1", 2),), (pod("h", 2, "n1"), pod("w", 1)))
    assert first_line(world, world.pods[-1]) == explain_pod(world, world.pods[-1]).answer


class Restricted:
    """An API server's client with an account that may read only its own namespace, nodes, slices and classes."""

    def get(self, path: str) -> dict[str, object]:
        return {"gitVersion": "v1.36.4"}

    def list(self, path: str, **query: str) -> list[ApiObject]:
        if path.endswith(("/v1/pods", "/v1/resourceclaims", "/namespaces")):
            raise PeerRefused("Forbidden", "no")
        return [node("n1", 1)] if path.endswith("/nodes") else []


def test_an_account_with_few_rights_is_told_what_was_not_seen() -> None:
    found = explain_pod(read_world(Restricted(), "default"), pod("w", 2))
    assert "no node has 2 free" in found.answer
    assert [entry.split(" of ")[0] for entry in found.unseen[:2]] == [
        "pods",
        "namespaces cannot be read: rules about other pods may be judged wrongly",
    ]
    assert any(entry.startswith("claims of other namespaces") for entry in found.unseen)


class Blind(Restricted):
    """An account that may not read what claims need."""

    def list(self, path: str, **query: str) -> list[ApiObject]:
        if "resource.k8s.io" in path:
            raise PeerRefused("Forbidden", "no")
        return super().list(path, **query)


class Least(Restricted):
    """An account that may read only pods, nodes, slices, claims and classes, of a release with DeviceTaintRules."""

    def get(self, path: str) -> dict[str, object]:
        return {"gitVersion": "v1.37.0"}

    def list(self, path: str, **query: str) -> list[ApiObject]:
        if path.endswith(("/devicetaintrules", "/resourcequotas", "/resourceclaimtemplates", "/namespaces", "/events")):
            raise PeerRefused("Forbidden", "no")
        return []


def test_rules_and_quotas_that_may_not_be_read_are_named_for_pods_with_claims() -> None:
    world = read_world(Least(), "default")
    entry = {"name": "dev", "resourceClaimTemplateName": "t"}
    found = explain_pod(world, {**pod("w"), "spec": {**pod("w")["spec"], "resourceClaims": [entry]}})
    assert "DeviceTaintRules cannot be read: devices that they taint count as untainted" in found.unseen
    assert "ResourceQuotas cannot be read: claims that they reject count as created" in found.unseen
    assert not any("Rules" in entry or "Quotas" in entry for entry in explain_pod(world, pod("w", 1)).unseen)
    older = replace(world, version="v1.36.4")
    assert not any("Rules" in entry for entry in explain_pod(older, pod("w", claim="c")).unseen)


def test_an_object_that_may_not_be_read_is_not_called_missing() -> None:
    waiting = pod("w", claim="c")
    assert "ResourceClaim c cannot be read" in explain_pod(read_world(Blind(), "default"), waiting).answer
    seen = replace(read_world(Blind(), "default"), claims=(claim("c"),))
    assert "cannot be judged: DeviceClasses cannot be read" in explain_pod(seen, waiting).answer
    template = {
        **waiting,
        "spec": {**waiting["spec"], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]},
    }
    assert "ResourceClaimTemplate t cannot be read" in explain_pod(seen, template).answer


def test_a_claim_of_another_namespace_is_named() -> None:
    far = claim("c")
    world = World((node("n1"),), claims=({**far, "metadata": {"namespace": "other", "name": "c"}},))
    answer = explain_pod(world, pod("w", claim="c")).answer
    assert "does not exist in namespace default; the one in namespace other is only for pods there" in answer


def test_a_pod_that_named_its_node_is_told_what_the_node_lacks() -> None:
    world = World((node("n1"),))
    assert explain_pod(world, pod("w", on="gone")).answer == "is on node gone (Pending), which does not exist"
    assert "offers no example.com/gpu" in explain_pod(world, pod("w", 1, on="n1")).answer


def test_an_init_container_may_ask_for_less() -> None:
    waiting = pod("w", 1)
    limits = {"example.com/gpu": "3"}
    container = {"name": "prepare", "image": "x", "resources": {"limits": limits, "requests": limits}}
    waiting = {**waiting, "spec": {**waiting["spec"], "initContainers": [container]}}
    cures = explain_pod(World((node("n1", 2),), (waiting,)), waiting).cures
    assert cures[0].text == "runs with 2 instead of 3 example.com/gpu in init container prepare (on n1)"
