"""Events and Node conditions on a real cluster: written by the chart's DaemonSet, and nothing else with its account."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.chart_account import patched
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.documented import Page
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

RESOURCE, TYPE = "events.chart/gpu", "plugwright.dev/events.chart_gpu"
NAME, OTHER = "plugwright-events", "events-other"
OPERATIONS = Page("operations.md")

pytestmark = [pytest.mark.timeout(600), pytest.mark.essential]  # the images may have to be built first


@pytest.fixture(scope="module")
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, NAME)
    mock = (f"config.resources[0].name={RESOURCE}", "config.resources[0].mock.count=3")
    release.install(*mock, "events.enabled=true", "metrics.enabled=true", "cleanup.enabled=false")
    release.rolled_out()
    yield release
    release.uninstall()
    until("its pods have ended", lambda: not release.pods(), 120)
    # Other tests compare the whole description of the Node.
    ours = "--field-selector=involvedObject.kind=Node,reportingComponent=plugwright"
    cluster.kubectl("--namespace=default", "delete", "events", ours)


def condition(cluster: Cluster) -> Object:
    """The condition of the resource; {} if there is none."""
    return next((each for each in cluster.node()["status"]["conditions"] if each["type"] == TYPE), {})


def until_condition(cluster: Cluster, status: str, reason: str) -> Object:
    def found() -> Object | None:
        now = condition(cluster)
        return now if (now.get("status"), now.get("reason")) == (status, reason) else None

    return until(f"the condition is {status}, {reason}", found, 60, last=lambda: condition(cluster))


def events(cluster: Cluster, reason: str) -> dict[str, Object]:
    """Of our DaemonSet, by the kind of their object."""
    listed = OPERATIONS.command("Events and Node conditions", "kubectl get events").split()[1:]
    found = json.loads(cluster.kubectl(*listed, "--output=json"))["items"]
    return {each["involvedObject"]["kind"]: each for each in found if each["reason"] == reason}


def unhealthy_devices(cluster: Cluster, release: Release) -> bool:
    pod = release.cluster.kubectl(
        f"--namespace={NAME}", "get", "pods", "--selector=app.kubernetes.io/component=daemon",
        "--output=jsonpath={.items[0].status.podIP}",
    )  # fmt: skip
    script = f"import urllib.request; print(urllib.request.urlopen('http://{pod}:9400/metrics').read().decode())"
    page = cluster.run("python3", "-c", script)
    assert page.returncode == 0, page.stderr
    lines = [line for line in page.stdout.splitlines() if line.startswith("plugwright_unhealthy_devices{")]
    return any(f'"{RESOURCE}"' in line and 'code="lost"' in line and line.endswith(" 1.0") for line in lines)


def test_a_failure_is_in_kubectl_and_in_the_metrics_until_the_device_recovers(
    release: Release, cluster: Cluster, node: Node, pods: Pods
) -> None:
    node.shows(RESOURCE, capacity=3, allocatable=3)
    pod = pods.create("events-holder", {RESOURCE: 1}).runs()
    [device] = pod.devices()
    until_condition(cluster, "False", "DevicesHealthy")
    until("the daemon knows the holder", lambda: "default/events-holder" in release.plugwright("status"), 90)

    release.plugwright("mock", "fail", device, "--reason", "fell off the bus", "--code", "lost")
    failed = until_condition(cluster, "True", "DevicesFailed")
    assert f"{device}: fell off the bus (lost)" in failed["message"]
    until(
        "both events", lambda: len(events(cluster, "DeviceFailed")) == 2, last=lambda: events(cluster, "DeviceFailed")
    )
    assert unhealthy_devices(cluster, release)
    for kind, name in (("pod", "events-holder"), ("node", NODE)):
        assert "fell off the bus" in cluster.kubectl("describe", kind, name).partition("Events:")[2]

    release.plugwright("mock", "recover", device)
    until_condition(cluster, "False", "DevicesHealthy")
    until("both events", lambda: len(events(cluster, "DeviceRecovered")) == 2)
    assert not unhealthy_devices(cluster, release)
    release.plugwright("cordon", RESOURCE, device, "--reason", "fan replaced")
    assert "fan replaced" in until_condition(cluster, "False", "DevicesCordoned")["message"]
    release.plugwright("uncordon", RESOURCE, device)
    until_condition(cluster, "False", "DevicesHealthy")


class Account:
    """The account of `node-events`, by a token that is bound to its pod on the node, or to none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        selector = "--selector=app.kubernetes.io/component=node-events"
        pod = cluster.kubectl(
            f"--namespace={NAME}", "get", "pods", selector, "--output=jsonpath={.items[0].metadata.name}"
        )
        token = (f"--namespace={NAME}", "create", "token", f"{NAME}-node-events")
        self.bound = cluster.kubectl(*token, "--bound-object-kind=Pod", f"--bound-object-name={pod}").strip()
        self.unbound = cluster.kubectl(*token).strip()

    def __call__(self, *arguments: str, given: Object | None = None, token: str = "") -> str:
        text = json.dumps(given) if given is not None else ""
        return self._cluster.kubectl(f"--token={token or self.bound}", *arguments, given=text)

    def patch(self, node: str, body: Object, token: str = "") -> tuple[int, str]:
        """Of a Node's status, without effect: the answer's code, and the reason of a refusal."""
        path = f"/api/v1/nodes/{node}/status?dryRun=All"
        return patched(self._cluster, token or self.bound, path, body, "strategic-merge-patch")

    def refused(self, *arguments: str, given: Object | None = None, token: str = "") -> str:
        with pytest.raises(KubectlFailed) as caught:
            self(*arguments, given=given, token=token)
        return str(caught.value)


@pytest.fixture(scope="module")
def account(release: Release, cluster: Cluster) -> Iterator[Account]:
    other: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    cluster.kubectl.create(other)
    yield Account(cluster)
    cluster.kubectl("delete", "node", OTHER)


OURS = {"type": "plugwright.dev/events.chart_tape", "status": "True", "reason": "DevicesFailed", "message": "broken"}
READY = {"type": "Ready", "status": "False", "reason": "Stolen", "message": ""}
CONDITIONS_ALONE = "this account may change nothing of a Node but its conditions"
DENIED: dict[str, tuple[tuple[str, Object], str]] = {
    "another Node's condition": (
        (OTHER, {"status": {"conditions": [OURS]}}),
        f"may not change the status of node {OTHER}",
    ),
    "a condition of the kubelet": (
        (NODE, {"status": {"conditions": [READY]}}),
        "no condition but those of plugwright.dev",
    ),
    "a resource": ((NODE, {"status": {"capacity": {RESOURCE: "99"}}}), CONDITIONS_ALONE),
    "an address": (
        (NODE, {"status": {"addresses": [{"type": "InternalIP", "address": "198.18.0.9"}]}}),
        CONDITIONS_ALONE,
    ),
    "a label": ((NODE, {"metadata": {"labels": {"stolen": "yes"}}}), CONDITIONS_ALONE),
}


@pytest.mark.parametrize("what", DENIED)
def test_its_token_changes_nothing_of_a_node_but_its_own_conditions(account: Account, what: str) -> None:
    (node, body), reason = DENIED[what]
    code, said = account.patch(node, body)
    assert (code, reason in said) == (422, True), said


def test_its_token_writes_its_own_conditions_only_if_it_is_of_a_pod(account: Account) -> None:
    mine: Object = {"status": {"conditions": [OURS]}}
    assert account.patch(NODE, mine) == (200, "")
    code, said = account.patch(NODE, mine, account.unbound)
    assert (code, "the token is not bound to a pod on a node" in said) == (422, True), said


def event(host: str = NODE, reason: str = "DeviceFailed", **involved: str) -> Object:
    about = {"kind": "Pod", "namespace": "default", "name": "somebody", **involved}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "events-forged", "namespace": about["namespace"]},
        "involvedObject": about,
        "reason": reason,
        "message": "forged",
        "source": {"component": "plugwright", "host": host},
        "reportingComponent": "plugwright",
        "reportingInstance": host,
    }


FORGED = {
    "another node's name": (event(OTHER), f"an Event of node {NODE} must be in its own name"),
    "another node": (event(kind="Node", name=OTHER), f"node {NODE} may write Events about itself and about pods"),
    "another kind": (event(kind="Secret"), f"node {NODE} may write Events about itself and about pods"),
    "another reason": (event(reason="Killing"), "this account may write Events about devices only"),
}
CREATE = ("create", "--dry-run=server", "--filename=-")


@pytest.mark.parametrize("what", FORGED)
def test_its_token_writes_events_in_its_nodes_name_alone(account: Account, what: str) -> None:
    made, reason = FORGED[what]
    assert reason in account.refused(*CREATE, given=made)


def test_it_cannot_know_where_an_events_pod_runs(account: Account, cluster: Cluster) -> None:
    """Which docs/threat-model.md says; but whoever reads the Event sees which node wrote it."""
    assert "events-forged" in account(*CREATE, given=event())
    assert "the token is not bound" in account.refused(*CREATE, given=event(), token=account.unbound)
    foreign = event() | {"metadata": {"name": "events-foreign", "namespace": "default"}}
    cluster.kubectl.create(foreign | {"reportingInstance": OTHER})
    changed = ("patch", "event", "events-foreign", "--type=merge", '--patch={"message": "stolen"}')
    assert account.refused(*changed)  # it may not even read it
    cluster.kubectl("delete", "event", "events-foreign")


def test_it_has_no_other_rights(account: Account) -> None:
    def may(verb: str, kind: str) -> bool:
        name, _, part = kind.partition("/")
        try:
            return account("auth", "can-i", verb, name, f"--subresource={part}", "--all-namespaces").strip() == "yes"
        except KubectlFailed:
            return False

    kinds = ("nodes", "nodes/status", "events", "pods", "secrets", "configmaps", "daemonsets.apps")
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    assert {(verb, kind) for verb in verbs for kind in kinds if may(verb, kind)} == {
        ("get", "nodes"),
        ("patch", "nodes/status"),
        ("create", "events"),
        ("patch", "events"),
    }


def test_its_conditions_are_removed_by_the_documented_command(release: Release, cluster: Cluster) -> None:
    until_condition(cluster, "False", "DevicesHealthy")
    before = {each["type"] for each in cluster.node()["status"]["conditions"]} - {TYPE}
    selector = "--selector=app.kubernetes.io/component=node-events"
    cluster.kubectl(f"--namespace={NAME}", "delete", "daemonset", f"{NAME}-node-events", "--wait")
    until("no reporter", lambda: not cluster.kubectl.every("pods", f"--namespace={NAME}", selector))
    command = OPERATIONS.command("Events and Node conditions", "plugwright node-events --clear")
    words = command.replace("plugwright/plugwright", f"{NAME}/{NAME}").split()[1:]
    done = cluster.run(sys.executable, "-m", "plugwright", *words)
    assert (done.returncode, NODE in done.stdout) == (0, True), done.stderr
    assert {each["type"] for each in cluster.node()["status"]["conditions"]} == before
