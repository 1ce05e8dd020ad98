"""An operator's day, played with the commands of the documentation: install, fail, cordon, reload, upgrade, uninstall.

What is changed in a command: the registry, which is the node's own store here, and the name of the resource, since
every test has its own. That an uninstall leaves nothing after five minutes is played in `test_chart`.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import runbook
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.documented import Page
from tests.kubernetes.enclosure import PATH
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.waiting import until

from plugwright import __version__

ROOT = Path(__file__).parents[2]
INSTALL, OPERATIONS, MOCK = Page("install.md"), Page("operations.md"), Page("mock.md")
GPU, WIDGET = "day/gpu", "day/widget"
BAD = "resources:\n- name: day\n  mock: {}\n"  # no resource's name


class Operator:
    """Somebody at a terminal on the node, in a directory of their own, with kubectl, helm and plugwright."""

    def __init__(self, cluster: Cluster, helm: Path, home: Path) -> None:
        self._cluster, self._home = cluster, home
        programs = (cluster.kubectl.program.parent, helm.parent, Path(sys.executable).parent)
        self._path = ":".join([*map(str, programs), PATH])
        (home / "deploy").symlink_to(ROOT / "deploy")

    def plays(self, *commands: str, resource: str = GPU) -> str:
        """What they print; each must end well."""
        printed = ""
        for command in commands:
            code, printed = self.tries(command, resource)
            assert code == 0, f"$ {command}\n{printed}"
        return printed

    def tries(self, command: str, resource: str = GPU) -> tuple[int, str]:
        text = command.replace("registry.example.com", "localhost").replace("mock/gpu", resource)
        text = text.replace("example.com/widget", resource)
        text = re.sub(r"(?<=[ =/])X(?=[ ,)]|$)", NODE, text, flags=re.MULTILINE)
        settings = f"export PATH={self._path}; cd {shlex.quote(str(self._home))}; set -o pipefail"
        done = self._cluster.run("bash", "-c", f"{settings}; {text}", limit=180)
        return done.returncode, done.stdout + done.stderr

    def writes(self, name: str, text: str) -> None:
        (self._home / name).write_text(text)

    def asks(self, *commands: str, namespace: str = "plugwright", resource: str = GPU) -> str:
        """Commands for the daemon of the node, by the page's way to it."""
        flags = f"--daemon-namespace {namespace}"
        return self.plays(
            *(f"{each} {flags}" if "node" in each else f"{each} --node X {flags}" for each in commands),
            resource=resource,
        )

    def hurries(self, namespace: str = "plugwright") -> None:
        """A change of the pod's object makes the kubelet look at its ConfigMap now, and not within its minute."""
        stamp = "date +%s%N"
        self.plays(f"kubectl annotate pods -n {namespace} --all --overwrite day=$({stamp})")


@pytest.fixture
def operator(cluster: Cluster, helm: Path, images: None, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(cluster, helm, tmp_path)
    operator.plays("kubectl delete namespace plugwright devices --ignore-not-found --timeout=60s")
    yield operator
    operator.tries("helm uninstall plugwright --namespace plugwright")
    for command in INSTALL.commands("Uninstalling"):
        if command.startswith("kubectl delete"):
            operator.tries(command)
    operator.tries("kubectl delete namespace plugwright devices --ignore-not-found --wait=false")


@pytest.mark.essential
def test_the_day_by_helm(operator: Operator, cluster: Cluster, node: Node, pods: Pods) -> None:
    _installs(operator, node)
    holder = _starts_the_pod_of_the_page(operator, cluster, pods)
    untouched = holder.containers(), holder.devices()
    _plays_the_runbook(operator)
    _sees_a_device_fail(operator, node, holder)
    _cordons(operator, node)
    daemons = _daemons(operator)
    _reloads(operator, node)
    assert _daemons(operator) == daemons
    _meets_a_refused_file(operator, node)
    _upgrades_the_image(operator, cluster, node)
    operator.asks(OPERATIONS.command("Cordons", "plugwright uncordon").replace("mock-3-4b09369e", _third(operator)))
    node.shows(GPU, capacity=12, allocatable=12)
    assert (holder.containers(), holder.devices()) == untouched

    operator.plays(OPERATIONS.command("Uninstalling", "helm uninstall"))
    node.shows(GPU, capacity=12, allocatable=0)
    assert (holder.containers(), holder.devices()) == untouched
    drain = OPERATIONS.command("Draining a node", "kubectl drain")
    operator.plays(f"{drain} --grace-period=1")  # its shell does not hear SIGTERM
    operator.plays(OPERATIONS.command("Draining a node", "kubectl uncordon"))
    assert "two-gpus" not in operator.plays("kubectl get pods -o name")


def _plays_the_runbook(operator: Operator) -> None:
    """Every command of the page that no other part of the day plays: each must end well on a healthy node."""
    for command in runbook.commands():
        text = f"{runbook.POD}\n{command}" if "$POD" in command else command
        code, printed = operator.tries(text)
        is_empty = "| grep" in command and not printed  # nothing of the kind in the log
        assert code == 0 or is_empty, f"$ {command}\n{printed}"


def _installs(operator: Operator, node: Node) -> None:
    for command in INSTALL.commands("Helm"):
        ours = f" --set mock.resource={GPU}" if command.startswith("helm install") else ""
        printed = operator.plays(command + ours)
        if command.endswith("plugwright status"):
            assert "10 of 10 healthy" in printed
    node.shows(GPU, capacity=10, allocatable=10)


def _starts_the_pod_of_the_page(operator: Operator, cluster: Cluster, pods: Pods) -> Pod:
    operator.writes("pod.yaml", OPERATIONS.yaml("Checking health").replace("busybox", BUSYBOX).replace("mock/gpu", GPU))
    operator.plays("kubectl apply -f pod.yaml")
    holder = Pod("two-gpus", cluster.kubectl).runs()
    assert "default/two-gpus" in operator.plays("plugwright status --node X")
    audit = OPERATIONS.command("Who had the device?", "kubectl logs")
    until("the pod is in the log", lambda: "two-gpus" in operator.tries(audit)[1], limit=20)
    lines = [json.loads(line) for line in operator.plays(audit).splitlines()]
    [line] = [line for line in lines if line["pod"] == "two-gpus"]
    assert (line["namespace"], line["container"], line["devices"]) == ("default", "main", holder.devices())
    return holder


def _sees_a_device_fail(operator: Operator, node: Node, holder: Pod) -> None:
    device = holder.devices()[0]
    fail = MOCK.command("Rehearsing", "plugwright mock fail ID --reason")
    recover = MOCK.command("Rehearsing", "plugwright mock recover ID")
    operator.asks(fail.replace("ID", device))
    node.shows(GPU, capacity=10, allocatable=9)
    holder.shows({device: "Unhealthy"})
    assert "fell off the bus" in operator.asks("plugwright status")
    operator.asks(recover.replace("ID", device))
    node.shows(GPU, capacity=10, allocatable=10)


def _cordons(operator: Operator, node: Node) -> None:
    cordon = OPERATIONS.command("Cordons", "plugwright cordon mock/gpu").replace("mock-3-4b09369e", _third(operator))
    assert "is cordoned until 20" in operator.asks(cordon)
    node.shows(GPU, capacity=10, allocatable=9)
    listed = operator.asks(OPERATIONS.command("Cordons", "plugwright cordon list"))
    assert all(text in listed for text in (_third(operator), "alice, as root (uid 0, pid ", "fan replaced on Monday"))
    log = operator.plays("kubectl logs -n plugwright ds/plugwright | grep '\"device cordoned\"'")
    assert json.loads(log)["by"].startswith("alice, as root")
    operator.asks(OPERATIONS.command("Raising the log level temporarily", "plugwright log-level"))
    assert operator.asks("plugwright log-level").startswith("debug, and info again in")


def _reloads(operator: Operator, node: Node) -> None:
    operator.plays(INSTALL.command("Upgrading", "helm upgrade"))
    operator.hurries()
    until("the change arrives", lambda: node.resource(GPU) == (12, 11), limit=150, last=lambda: node.resource(GPU))


def _meets_a_refused_file(operator: Operator, node: Node) -> None:
    """Refused while the daemon runs, and by one that starts: the last good file stays in force in both cases."""
    patch = json.dumps({"data": {"plugwright.yaml": BAD}})
    operator.plays(f"kubectl patch configmap plugwright -n plugwright --type merge -p {shlex.quote(patch)}")
    operator.hurries()
    _until_status_has(operator, "refused")
    operator.plays("kubectl delete pod -n plugwright -l app.kubernetes.io/component=daemon --wait")
    node.shows(GPU, capacity=12, allocatable=11)
    _until_status_has(operator, "refused")
    ready = "kubectl get ds plugwright -n plugwright -o jsonpath='{.status.numberReady}'"
    assert operator.plays(ready).strip() == "0"
    code, printed = operator.tries(OPERATIONS.command("PlugwrightRolloutStuck", "kubectl rollout status"))
    assert (code, "timed out waiting for the condition" in printed) == (1, True), printed  # a rollout stops here
    operator.plays(INSTALL.command("Upgrading", "helm upgrade"))
    operator.hurries()
    until("the file is good again", lambda: "refused" not in operator.asks("plugwright status"), limit=150)


def _until_status_has(operator: Operator, text: str) -> None:
    shown = [""]

    def is_shown() -> bool:
        shown[0] = operator.asks("plugwright status")
        return text in shown[0]

    until(f"status has {text!r}", is_shown, limit=150, last=lambda: shown[0])


def _upgrades_the_image(operator: Operator, cluster: Cluster, node: Node) -> None:
    """Another image, and the cordon holds."""
    cluster.tag_image(f"localhost/plugwright:{__version__}", "localhost/plugwright:next")
    upgrade = INSTALL.command("Upgrading", "helm upgrade").replace("mock.count=12", "image.tag=next")
    operator.plays(upgrade, INSTALL.command("Helm", "kubectl --namespace plugwright rollout"))
    images = "kubectl get pods -n plugwright -l app.kubernetes.io/component=daemon -o jsonpath='{..image}'"
    assert "localhost/plugwright:next" in operator.plays(images)
    node.shows(GPU, capacity=12, allocatable=11)
    assert "alice" in operator.asks("plugwright cordon list")


def _daemons(operator: Operator) -> str:
    return operator.plays("kubectl get pods -n plugwright -l app.kubernetes.io/component=daemon -o name")


def _third(operator: Operator) -> str:
    """The device with index 3, whose name comes from that of the resource."""
    report = json.loads(operator.asks("plugwright status -o json"))
    [resource] = report["resources"]
    [device] = [device["id"] for device in resource["devices"] if device["attributes"]["index"] == 3]
    return str(device)


def test_the_day_by_manifest(operator: Operator, node: Node, pods: Pods) -> None:
    operator.writes("plugwright.yaml", json.dumps(_widgets()))
    print_manifest, apply = INSTALL.commands("Plain manifests")[:2]
    rollout = "kubectl rollout status daemonset/plugwright --namespace devices --timeout=120s"
    operator.plays(print_manifest, apply, rollout, resource=WIDGET)
    node.shows(WIDGET, capacity=4, allocatable=4)
    holder = pods.create("holder", {WIDGET: 1}).runs()
    before = holder.containers(), holder.devices()
    daemons = operator.plays("kubectl get pods -n devices -o name")

    rule = {"resource": WIDGET, "attributes": {"index": 3}, "reason": "recalled by the vendor"}
    operator.writes("plugwright.yaml", json.dumps({**_widgets(), "cordons": [rule]}))
    operator.plays(print_manifest, apply, resource=WIDGET)
    operator.hurries("devices")
    until("the cordon arrives", lambda: node.resource(WIDGET) == (4, 3), limit=150)
    listed = operator.asks("plugwright cordon list", namespace="devices", resource=WIDGET)
    assert "recalled by the vendor" in listed

    operator.writes("plugwright.yaml", BAD)
    code, printed = operator.tries(print_manifest, WIDGET)
    assert (code, "'day' is not a resource name" in printed) == (1, True), printed
    assert operator.plays("kubectl get pods -n devices -o name") == daemons
    assert (holder.containers(), holder.devices()) == before

    operator.writes("plugwright.yaml", json.dumps(_widgets()))
    operator.plays(print_manifest, INSTALL.command("Plain manifests", "kubectl delete -f"), resource=WIDGET)
    node.shows(WIDGET, capacity=4, allocatable=0)


def _widgets() -> dict[str, object]:
    return {"resources": [{"name": WIDGET, "mock": {"count": 4}}]}
