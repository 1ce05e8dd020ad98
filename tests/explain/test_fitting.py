"""`fit` on small worlds: how many pods run, where, and why the next one does not."""

import pytest
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published

from plugwright.errors import ConfigError
from plugwright.explain.fitting import fit_pod, in_namespace, with_objects, workloads
from plugwright.explain.world import World

TEMPLATE = {"kind": "ResourceClaimTemplate", "metadata": {"name": "one"}, "spec": {"spec": claim("x")["spec"]}}
DEVICES = (published(device("a"), device("b")), published(device("a"), on="n2"))


def with_template(name: str = "w") -> dict[str, object]:
    entry = dict(pod(name))
    entry["spec"] = {**entry["spec"], "resourceClaims": [{"name": "dev", "resourceClaimTemplateName": "one"}]}
    return entry


def test_pods_fill_the_counted_devices_of_each_node() -> None:
    world = World((node("n1", 4), node("n2", 3)), (pod("h", 1, "n1"),))
    report = fit_pod(world, pod("w", 2), 5)
    assert (report.placed, report.nodes) == (2, {"n1": 1, "n2": 1})
    assert report.explanation is not None
    assert "no node has 2 free" in report.explanation.answer


def test_claims_of_a_template_get_a_device_each() -> None:
    world = with_objects(World((node("n1"), node("n2")), (), DEVICES, (CLASS,)), [TEMPLATE], "default")
    report = fit_pod(world, with_template(), 4)
    assert (report.placed, report.nodes) == (3, {"n1": 2, "n2": 1})
    assert report.explanation is not None
    assert "allocated to other claims" in report.explanation.answer


def test_a_shared_claim_keeps_its_pods_on_its_node() -> None:
    world = World((node("n1"), node("n2")), (), DEVICES, (CLASS,), (claim("c"),))
    assert fit_pod(world, pod("w", claim="c"), 3).nodes == {"n1": 3}


def test_limits_of_a_file_are_requests_as_on_an_api_server() -> None:
    entry: dict[str, object] = dict(pod("w"))
    entry["spec"] = {"containers": [{"name": "main", "resources": {"limits": {"example.com/gpu": "3"}}}]}
    assert fit_pod(World((node("n1", 4),)), entry, 2).placed == 1


def test_a_malformed_pod_is_an_error_of_the_file() -> None:
    with pytest.raises(ConfigError, match="pod w must be one that an API server accepts"):
        fit_pod(World((node("n1", 4),)), {"metadata": {"name": "w"}, "spec": {"containers": [3]}}, 1)


def test_all_pods_that_run_need_no_explanation() -> None:
    assert fit_pod(World((node("n1", 4),)), pod("w", 2), 2).explanation is None


def test_a_slice_of_the_file_replaces_that_of_the_cluster() -> None:
    """Cluster-scoped objects have no namespace, also in a file for a namespace."""
    newer = in_namespace({"kind": "ResourceSlice", **published(device("c"))}, "default")
    world = with_objects(World((node("n1"),), (), DEVICES[:1], (CLASS,)), [newer], "default")
    assert [entry["spec"]["devices"] for entry in world.slices] == [[device("c")]]


def test_a_missing_template_is_the_reason() -> None:
    report = fit_pod(World((node("n1"),), (), DEVICES[:1], (CLASS,)), with_template(), 1)
    assert report.placed == 0
    assert report.explanation is not None
    assert "ResourceClaimTemplate one does not exist" in report.explanation.answer


def test_a_quota_limits_the_claims_of_a_template() -> None:
    key = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
    quota = {
        "metadata": {"namespace": "default", "name": "team"},
        "spec": {"hard": {key: "2"}},
        "status": {"used": {key: "2"}},
    }
    world = World((node("n1"),), (), DEVICES[:1], (CLASS,), quotas=(quota,))
    report = fit_pod(with_objects(world, [TEMPLATE], "default"), with_template(), 1)
    assert report.explanation is not None
    assert f"ResourceQuota team allows 2 {key}" in report.explanation.answer
    assert report.explanation.cures[0].kinds == ("quota",)


def test_workloads_have_their_replicas() -> None:
    spec = pod("w", 1)["spec"]
    documents = [
        {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3, "template": {"spec": spec}}},
        {"kind": "Job", "metadata": {"name": "j"}, "spec": {"parallelism": 2, "template": {"spec": spec}}},
        {"kind": "Service", "metadata": {"name": "s"}},
    ]
    found = [(entry["metadata"]["name"], count) for entry, count in workloads(documents, "team-a")]
    assert found == [("d", 3), ("j", 2)]


def test_a_pod_that_an_api_server_rejects_is_an_error_of_the_file() -> None:
    fraction = pod("w")
    fraction["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1500m"}}
    with pytest.raises(ConfigError, match=r"limits\[example.com/gpu\]: Invalid value.*must be an integer"):
        fit_pod(World((node("n1", 4),)), fraction, 1)
    twice = claim("c")
    twice["spec"]["devices"]["requests"] *= 2
    with pytest.raises(ConfigError, match=r"ResourceClaim c: spec.devices.requests\[1\]"):
        fit_pod(World((node("n1"),), (), DEVICES, (CLASS,), (twice,)), pod("w", claim="c"), 1)


def test_a_workload_with_a_generated_name_is_called_by_its_prefix() -> None:
    template = {"spec": pod("w", 1)["spec"]}
    job = {"kind": "Job", "metadata": {"generateName": "train-"}, "spec": {"template": template}}
    (found, _), *_ = workloads([job, {**pod("p"), "kind": "Pod", "metadata": {"generateName": "p-"}}], "default")
    report = fit_pod(World((node("n1", 0),)), found, 1)
    assert report.pod == "train-"
    assert report.explanation is not None
    assert report.explanation.checks == ("kubectl describe node n1",)  # there is no pod to describe
