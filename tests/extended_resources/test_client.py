"""The client of the API server: the values it reads, and the errors it raises."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.extended_resources.imitation import Cluster, Refusal, Time, pod
from tests.extended_resources.kubelet import Kubelet
from tests.extended_resources.serving import TOKEN, serving, serving_a_pod

from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused, PlugwrightError
from plugwright.extended_resources.changes import NodesClient, addition_patch, removal_patch
from plugwright.extended_resources.client import ClusterNodes, connect
from plugwright.kube.access import ClusterAccess


@pytest.fixture(params=["kubeconfig", "pod"])
def api(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[NodesClient]:
    """With a kubeconfig, and with the service account of a pod."""
    if request.param == "pod":
        with serving_a_pod(cluster, tmp_path / "account") as client:
            yield ClusterNodes(client)
    else:
        with serving(cluster, tmp_path) as path, connect(path) as connected:
            yield connected


def changed(kubeconfig: Path, change: Callable[[Any], None]) -> Path:
    document = json.loads(kubeconfig.read_text())
    change(document)
    kubeconfig.write_text(json.dumps(document))
    return kubeconfig


def test_nodes_have_capacity_owners(api: NodesClient, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    cluster.add_node("n2")
    kubelet_of_n1.serve("mock/gpu", 9, unhealthy=1)
    first, second = api.nodes()
    assert (first.name, first.capacity, first.allocatable) == ("n1", {"mock/gpu": 10}, {"mock/gpu": 9})
    assert first.owners["mock/gpu"].kubelet
    assert (second.name, second.capacity) == ("n2", {})
    assert api.find_node("n1") == first
    assert api.find_node("n3") is None


def test_pods_that_have_ended_or_wait_for_a_node_hold_nothing(api: NodesClient, cluster: Cluster) -> None:
    cluster.pods = [
        pod("a", "n1", {"a/b": 1}),
        pod("b", "n2", {"a/b": 1}),
        pod("done", "n1", {"a/b": 1}, phase="Succeeded"),
        pod("failed", "n1", {"a/b": 1}, phase="Failed"),
        pod("waiting", "", {"a/b": 1}, phase="Pending"),
    ]
    assert [pod.name for pod in api.pods()] == ["a", "b"]
    assert [pod.name for pod in api.pods("n1")] == ["a"]


def test_device_classes(api: NodesClient, cluster: Cluster) -> None:
    cluster.classes = [{"metadata": {"name": "gpus"}, "spec": {"extendedResourceName": "a/b"}}]
    assert api.device_classes()["a/b"] == ("gpus",)
    cluster.classes = None
    assert api.device_classes() == {}


def test_a_patch_is_recorded_under_our_name(api: NodesClient, cluster: Cluster) -> None:
    node = api.find_node("n1")
    assert node
    api.patch_status("n1", addition_patch(node, {"a/b": 4}))
    node = api.find_node("n1")
    assert node
    assert (node.capacity["a/b"], node.owners["a/b"].manager) == (4, "plugwright")
    api.patch_status("n1", removal_patch(node, "a/b"))
    assert cluster.counts("n1", "a/b") == (None, None)


def test_a_patch_of_an_older_version_is_a_conflict(api: NodesClient, cluster: Cluster) -> None:
    node = api.find_node("n1")
    assert node
    cluster.touch("n1")
    with pytest.raises(PeerRefused) as caught:
        api.patch_status("n1", addition_patch(node, {"a/b": 4}))
    assert caught.value.code == "Conflict"
    assert cluster.counts("n1", "a/b") == (None, None)


@pytest.mark.parametrize(
    ("verb", "act"),
    [
        ("list nodes", lambda api: api.nodes()),
        ("get nodes", lambda api: api.find_node("n1")),
        ("list pods", lambda api: api.pods()),
        ("list deviceclasses", lambda api: api.device_classes()),
        ("patch nodes/status", lambda api: api.patch_status("n1", [])),
    ],
)
def test_forbidden_request_is_named(
    api: NodesClient, cluster: Cluster, verb: str, act: Callable[[NodesClient], object]
) -> None:
    cluster.forbidden = {verb}
    with pytest.raises(PeerRefused, match=rf"not allowed to {verb}: .*--rbac prints the ClusterRole"):
        act(api)


@pytest.mark.parametrize(("code", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (503, "Unavailable")])
def test_a_server_that_cannot_answer_now_is_gone(api: NodesClient, cluster: Cluster, code: int, reason: str) -> None:
    def refuse(asked: str) -> None:
        raise Refusal(code, reason, "etcd is away")

    cluster.before = refuse
    with pytest.raises(PeerGone, match="cannot answer now: etcd is away"):
        api.nodes()


def test_other_refusals_keep_their_reason(api: NodesClient, cluster: Cluster) -> None:
    with pytest.raises(PeerRefused, match=r"rejected our request due to an error in our request \(Invalid\)"):
        api.patch_status("n1", [{"op": "remove", "path": "/status/capacity/a~1b"}])


def test_rejected_credentials_are_named(kubeconfig: Path) -> None:
    account = changed(kubeconfig, lambda document: document["users"][0].update(user={"token": "old"}))
    with connect(account) as api, pytest.raises(PeerRefused, match="the token may have expired"):
        api.nodes()


def test_unreachable_server_is_named(kubeconfig: Path) -> None:
    account = changed(
        kubeconfig, lambda document: document["clusters"][0]["cluster"].update(server="http://127.0.0.1:1")
    )
    with connect(account) as api, pytest.raises(PeerGone, match=r"cannot reach http://127\.0\.0\.1:1: "):
        api.nodes()


@pytest.mark.parametrize("server", ["", "no url", "ftp://127.0.0.1", "http://[::1", "http://127.0.0.1:x"])
def test_invalid_address_is_our_error(kubeconfig: Path, server: str) -> None:
    account = changed(kubeconfig, lambda document: document["clusters"][0]["cluster"].update(server=server))
    with pytest.raises(PlugwrightError), connect(account) as api:
        api.nodes()


@pytest.mark.parametrize(
    "user",
    [{"client-certificate-data": "?"}, {"token": 3}, {"exec": {"args": 3}}, {"as-groups": ["a"]}],
)
def test_credentials_that_cannot_be_read_are_the_operators_fault(kubeconfig: Path, user: dict[str, object]) -> None:
    account = changed(kubeconfig, lambda document: document["users"][0].update(user=user))
    with pytest.raises(ConfigError, match="kubeconfig"), connect(account):
        pass


def test_answer_that_is_no_node_is_malformed(api: NodesClient, cluster: Cluster) -> None:
    cluster.nodes["n1"]["status"]["capacity"] = 7
    with pytest.raises(MalformedMessage, match="unreadable answer"):
        api.nodes()


def test_a_pod_trusts_no_other_authority_than_its_own(cluster: Cluster, tmp_path: Path) -> None:
    with serving_a_pod(cluster, tmp_path / "account") as client:
        with serving_a_pod(Cluster(Time()), tmp_path / "another"):
            (tmp_path / "another" / "ca.crt").replace(tmp_path / "account" / "ca.crt")
        with pytest.raises(PeerGone, match=r"cannot reach https://127\.0\.0\.1:.*certificate"):
            ClusterNodes(client).nodes()


def test_a_pods_token_is_read_again(cluster: Cluster, tmp_path: Path) -> None:
    """The kubelet replaces it before it expires."""
    with serving_a_pod(cluster, tmp_path / "account") as client:
        token = tmp_path / "account" / "token"
        token.write_text("old")
        with pytest.raises(PeerRefused, match="the token may have expired"):
            ClusterNodes(client).nodes()
        token.write_text(TOKEN)
        assert [node.name for node in ClusterNodes(client).nodes()] == ["n1"]


def test_outside_of_a_pod_there_is_no_cluster_of_its_own(tmp_path: Path) -> None:
    assert ClusterAccess.in_cluster({}, tmp_path) is None
    assert ClusterAccess.in_cluster({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, tmp_path / "none") is None
