"""The fleet commands on a real cluster: the API server's exec reaches daemons, and their reports name holders."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

RESOURCE = "fleet.chart/gpu"
VALUES = (f"config.resources[0].name={RESOURCE}", "config.resources[0].mock.count=3", "cleanup.enabled=false")
PORT = ("metrics.enabled=true", "metrics.nodeReport=true")
READABLE = {"": ["pods", "nodes", "namespaces"], "resource.k8s.io": ["resourceslices", "resourceclaims"]}

pytestmark = pytest.mark.timeout(600)  # the images may have to be built first


@pytest.fixture
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, "plugwright-fleet")
    release.install(*VALUES)
    release.rolled_out()
    yield release
    release.uninstall()


@pytest.mark.essential
def test_commands_reach_the_daemon_of_a_node_and_show_who_holds_a_device(
    release: Release, cluster: Cluster, node: Node, pods: Pods
) -> None:
    def plugwright(*arguments: str, code: int = 0) -> str:
        done = cluster.run(sys.executable, "-m", "plugwright", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def devices() -> dict[str, dict[str, Any]]:
        found = json.loads(plugwright("devices", NODE, "--resource", RESOURCE, "-o", "json"))["devices"]
        return {device["id"]: device for device in found}

    node.shows(RESOURCE, capacity=3, allocatable=3)
    [held] = pods.create("holder", {RESOURCE: 1}).runs().devices()
    report = json.loads(plugwright("status", "--node", NODE, "-o", "json"))
    assert (report["kind"], report["metadata"]["nodeName"]) == ("NodeReport", NODE)
    until("the holder is known", lambda: devices()[held]["holders"], 90)
    assert len(devices()) == 3
    assert held in plugwright("who", "default/holder")
    assert "default/holder" in plugwright("who", held, "--node", NODE)
    assert RESOURCE in plugwright("free")

    free = next(device for device in devices() if device != held)
    plugwright("cordon", RESOURCE, free, "--node", NODE, "--reason", "fan replaced")
    node.shows(RESOURCE, capacity=3, allocatable=2)
    assert "fan replaced" in plugwright("cordon", "list", "--all-nodes")
    until(
        "the history has the cordon",
        lambda: "fan replaced" in plugwright("history", "--node", NODE),
        60,
        last=lambda: plugwright("history", "--node", NODE),
    )
    plugwright("uncordon", RESOURCE, free, "--node", NODE)
    node.shows(RESOURCE, capacity=3, allocatable=3)
    examined = json.loads(plugwright("doctor", NODE, "-o", "json"))
    assert (examined["kind"], examined["result"], examined["metadata"]["inPod"]) == ("DoctorReport", "healthy", True)


def test_reports_are_read_through_the_proxy_of_pods_and_else_by_exec(
    release: Release, cluster: Cluster, node: Node, pods: Pods
) -> None:
    on_call = reader_without_exec(cluster)

    def plugwright(*arguments: str | Path) -> str:
        done = cluster.run(sys.executable, "-m", "plugwright", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def reading(*flags: str | Path) -> str:
        lines = plugwright("devices", NODE, "-o", "wide", *flags).splitlines()
        return next((line for line in lines if line.startswith("NodeReport of ")), "\n".join(lines))

    def upgraded(*values: str) -> str:
        """The pod of the daemon with these values."""
        release.upgrade(*VALUES, *values)
        release.rolled_out()
        [pod] = release.pods()
        node.shows(RESOURCE, capacity=3, allocatable=3)
        return f"{release.name}/{pod.removeprefix('pod/')}"

    node.shows(RESOURCE, capacity=3, allocatable=3)
    assert f"by exec into pod {release.name}/" in reading()
    assert "may not be read" in (refused := reading("--kubeconfig", on_call)) or "cannot be read" in refused

    pod = upgraded(*PORT)
    assert reading() == f"NodeReport of {NODE}: from the proxy of pod {pod}"
    [held] = pods.create("proxied", {RESOURCE: 1}).runs().devices()
    holder = ("who", held, "--node", NODE, "--resource", RESOURCE, "--kubeconfig", on_call)
    until("the history has the holder", lambda: "allocated to default/proxied" in plugwright(*holder), 90)
    assert held in plugwright("who", "default/proxied", "--kubeconfig", on_call)
    with packets_dropped(cluster, release):
        line = reading()
    assert line.startswith(f"NodeReport of {NODE}: by exec into pod {pod}; its port 9400 cannot be read: ")
    assert line.endswith("it did not answer within 5 s")

    certificate = trustme.CA().issue_cert("plugwright")
    chain, key = cluster.state / "tls.crt", cluster.state / "tls.key"
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    cluster.kubectl(f"--namespace={release.name}", "create", "secret", "tls", "tls", f"--cert={chain}", f"--key={key}")
    pod = upgraded(*PORT, "metrics.tlsSecret=tls")
    assert reading("--kubeconfig", on_call) == f"NodeReport of {NODE}: from the proxy of pod {pod}"


def reader_without_exec(cluster: Cluster) -> Path:
    """The kubeconfig of somebody who may read objects and the proxy of pods."""
    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["list"]} for group, kinds in READABLE.items()]
    rules.append({"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]})
    account = {"kind": "ServiceAccount", "name": "on-call", "namespace": "default"}
    cluster.kubectl.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "on-call", "namespace": "default"}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "on-call"},
         "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "on-call"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "on-call"},
         "subjects": [account]},
    )  # fmt: skip
    path = cluster.state / "on-call.conf"
    path.write_text(cluster.files.kubeconfig(cluster.kubectl("create", "token", "on-call").strip()))
    return path


@contextmanager
def packets_dropped(cluster: Cluster, release: Release) -> Iterator[None]:
    """Nothing that the node sends to the daemon's pod arrives, as with a network policy: it goes to another address."""

    def ip(*arguments: str) -> str:
        done = cluster.run("ip", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    [pod] = release.pods()
    address = cluster.kubectl(f"--namespace={release.name}", "get", pod, "--output=jsonpath={.status.podIP}")
    device = ip("route", "get", address).split(" dev ")[1].split()[0]
    ip("neigh", "replace", address, "lladdr", "02:00:00:00:00:01", "dev", device, "nud", "permanent")
    try:
        yield
    finally:
        ip("neigh", "del", address, "dev", device)
