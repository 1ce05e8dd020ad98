"""The chart serves a resource by claims with the rights that it gives, and leaves no slice behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.kubectl import Object
from tests.kubernetes.pods import Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

NAME = "plugwright-claims"
RESOURCE = "claims.chart/tape"
DRIVER = "tape.claims.chart"
VALUES = (
    f"config.resources[0].name={RESOURCE}",
    "config.resources[0].mock.count=4",
    "config.resources[0].serve=dra",
    "cleanup.enabled=false",  # no kubelet keeps the name of what claims serve
)
WIPE = 30  # seconds after the end of a driver, then the kubelet removes its slices


@pytest.fixture
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, NAME)
    yield release
    release.remove()


def slices(cluster: Cluster) -> list[Object]:
    return cluster.kubectl.every("resourceslices", f"--field-selector=spec.driver={DRIVER}")


def ready(cluster: Cluster, pod: str) -> int:
    """How many devices of the pod's claims the driver has reported as ready."""
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for claim in cluster.kubectl.every("resourceclaims")
        if claim["metadata"]["name"].startswith(f"{pod}-")
        for device in claim["status"].get("devices", [])
        for condition in device.get("conditions", [])
    )


def test_the_chart_serves_claims_and_leaves_no_slice(release: Release, cluster: Cluster, pods: Pods) -> None:
    release.install(*VALUES)
    release.rolled_out()
    until("its devices are published", lambda: slices(cluster), last=release.logs)
    (published,) = slices(cluster)
    assert (published["spec"]["nodeName"], len(published["spec"]["devices"])) == (NODE, 4)
    (owner,) = published["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", NODE)
    release.test()  # a pod takes a device by a claim

    named = pods.create("named", {RESOURCE: 2}).runs()  # by the resource's name, which the class has taken over
    assert len(named.devices()) == 2
    assert RESOURCE not in cluster.node()["status"].get("allocatable", {})

    until("the claim says that both are ready", lambda: ready(cluster, "named") == 2, last=release.logs)
    assert "forbidden" not in release.logs().lower()
    pods.end()
    release.uninstall()
    until("no slice is left", lambda: not slices(cluster), limit=WIPE + 30)
    kinds = (
        "deviceclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings"
    )
    found = cluster.kubectl("get", kinds, "--output=name", "--selector=app.kubernetes.io/component=daemon")
    assert NAME not in found
