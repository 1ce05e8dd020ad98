"""What runs after an uninstall: it goes only when the nodes are clean, and takes its own rights away last."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.extended_resources.imitation import Cluster, Time, pod
from tests.extended_resources.kubelet import Kubelet
from tests.extended_resources.serving import serving_a_pod

from plugwright.extended_resources.changes import ChangeTarget
from plugwright.extended_resources.uninstall import Release, clean_up
from plugwright.kube.api_client import BlockingClient

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CRON_JOB = "/apis/batch/v1/namespaces/devices/cronjobs/gone"
DAEMON_SET = "/apis/apps/v1/namespaces/devices/daemonsets/plugwright"
ACCOUNT = "/api/v1/namespaces/devices/serviceaccounts/gone"
CLUSTER_ROLE, CLUSTER_BINDING = f"{RBAC}/clusterroles/devices-gone", f"{RBAC}/clusterrolebindings/devices-gone"
ROLE, BINDING = f"{RBAC}/namespaces/devices/roles/gone", f"{RBAC}/namespaces/devices/rolebindings/gone"
ALL = (CRON_JOB, ACCOUNT, CLUSTER_ROLE, CLUSTER_BINDING, ROLE, BINDING)
LEFT_TO_THE_COLLECTOR = {CLUSTER_BINDING, ROLE, BINDING}
DAY = 24 * 3600.0


@pytest.fixture
def cluster(time: Time) -> Cluster:
    cluster = Cluster(time)
    cluster.add_node("n1")
    for path in ALL:
        name = path.rpartition("/")[2]
        born = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        cluster.objects[path] = {"metadata": {"name": name, "uid": f"uid-of-{path}", "creationTimestamp": born}}
    return cluster


@pytest.fixture
def client(cluster: Cluster, tmp_path: Path) -> Iterator[BlockingClient]:
    with serving_a_pod(cluster, tmp_path / "account") as client:
        yield client


def run(client: BlockingClient, time: Time, *resources: str) -> tuple[bool, list[str]]:
    said: list[str] = []

    def report(target: ChangeTarget, progress: str) -> None:
        said.append(f"{target}: {progress}")

    release = Release("devices", "gone", "devices-gone", ["plugwright"], resources or ["mock/gpu"], DAY)
    return clean_up(client, release, report, time.clock), said


def test_the_resources_of_the_release_are_removed_when_they_stay_away(
    client: BlockingClient, cluster: Cluster, time: Time, kubelet_of_n1: Kubelet
) -> None:
    for resource in ("mock/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu", "other.com/gone"):
        kubelet_of_n1.serve(resource, 2)
        if resource != "nvidia.com/gpu":
            kubelet_of_n1.stop(resource)
    done, _ = run(client, time, "mock/gpu", "nvidia.com/mig-*")
    assert done
    assert time.now >= kubelet_of_n1.GRACE
    left = {name for name in cluster.nodes["n1"]["status"]["capacity"] if "/" in name}
    assert left == {"nvidia.com/gpu", "other.com/gone"}  # another's live one, and another vendor's dead one


def test_its_own_rights_go_last_and_by_the_garbage_collector(
    client: BlockingClient, cluster: Cluster, time: Time
) -> None:
    done, _ = run(client, time)
    assert done
    assert cluster.deleted == [(CRON_JOB, "Orphan"), (CLUSTER_ROLE, "Background"), (ACCOUNT, "Background")]
    assert cluster.objects.keys() == LEFT_TO_THE_COLLECTOR
    owners = {path: cluster.objects[path]["metadata"]["ownerReferences"][0]["uid"] for path in LEFT_TO_THE_COLLECTOR}
    assert owners == {
        CLUSTER_BINDING: f"uid-of-{CLUSTER_ROLE}",
        ROLE: f"uid-of-{ACCOUNT}",
        BINDING: f"uid-of-{ACCOUNT}",
    }


def test_it_patches_nothing_that_could_run(client: BlockingClient, cluster: Cluster, time: Time) -> None:
    run(client, time)
    patched = {asked.removeprefix("patch ") for asked in cluster.asked if asked.startswith("patch /")}
    assert patched == LEFT_TO_THE_COLLECTOR


def test_while_a_pod_holds_a_device_it_stays_for_another_try(
    client: BlockingClient, cluster: Cluster, time: Time, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve("mock/gpu", 2)
    kubelet_of_n1.stop("mock/gpu")
    cluster.pods = [pod("holder", "n1", {"mock/gpu": 1})]
    done, said = run(client, time)
    assert not done
    assert "held by default/holder:1" in said[-1]
    assert cluster.objects.keys() == set(ALL)
    cluster.objects[CRON_JOB]["metadata"]["creationTimestamp"] = f"{datetime.now(UTC) - timedelta(days=2):%FT%TZ}"
    assert run(client, time)[0]  # its time is over
    assert cluster.objects.keys() == LEFT_TO_THE_COLLECTOR


def test_where_the_release_is_installed_again_nothing_is_removed_but_itself(
    client: BlockingClient, cluster: Cluster, time: Time, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve("mock/gpu", 2)
    kubelet_of_n1.stop("mock/gpu")

    def install() -> None:
        if time.now > 60:
            cluster.objects[DAEMON_SET] = {"metadata": {"name": "plugwright"}}

    time.every_second.append(install)
    assert run(client, time)[0]
    assert time.now < kubelet_of_n1.GRACE
    assert cluster.counts("n1", "mock/gpu") == ("2", "0")
    assert cluster.objects.keys() == LEFT_TO_THE_COLLECTOR | {DAEMON_SET}


def test_one_that_was_killed_on_its_way_out_goes_on_there(
    client: BlockingClient, cluster: Cluster, time: Time, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve("mock/gpu", 2)
    del cluster.objects[CRON_JOB], cluster.objects[CLUSTER_ROLE], cluster.objects[CLUSTER_BINDING]
    assert run(client, time)[0]
    assert cluster.deleted == [(ACCOUNT, "Background")]
