"""One resource through both APIs, each device through one at a time: no device is ever given out twice.

Each container takes a directory named after its device, on the node, for as long as it runs: two containers with one
device find each other there, whatever anybody's books say.
"""

import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.kubernetes.chart_account import chart_account, chart_objects
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.findings import Findings
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Kubectl, KubectlFailed, Object
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

_AT_ONCE = 14  # pods, for 8 devices
_TAKE = "d=$MOCK_VISIBLE_DEVICES; mkdir /held/$d || echo $HOSTNAME $d >> /held/overlaps; sleep {}; rmdir /held/$d; true"
_SERVE = {"api": "both", "split": {"dra": 4}, "keepFree": 1}


@pytest.fixture
def claims(cluster: Cluster, pods: Pods, request: pytest.FixtureRequest) -> Iterator[Claims]:
    """With a class for the resource of the test, which is named after it."""
    name = resource_name(request)
    made = Claims(cluster.kubectl, f"{name}.example.com", f"example.com/{name}")
    made.template("one")
    yield made
    cluster.revive()
    pods.end()
    made.end()


@pytest.fixture
def rights(cluster: Cluster, plugins: Plugins, helm: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """The daemon has the rights that the chart gives to one of its pods on this node, and no others."""
    name = resource_name(request)
    values = {"config": {"resources": [{"name": f"example.com/{name}", "mock": {"count": 8}, "serve": _SERVE}]}}
    pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": f"{name}.example.com", "nodeName": "other", "pool": pool, "devices": []}
    denied = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": spec}
    objects = chart_objects(cluster, helm, name, json.dumps(values))
    with chart_account(cluster, name, objects, denied) as account:
        plugins.kubeconfig = cluster.state / "daemon.conf"
        plugins.kubeconfig.touch(mode=0o600)
        plugins.kubeconfig.write_text(cluster.files.kubeconfig(account.bound))
        yield
        plugins.end()


def resource_name(request: pytest.FixtureRequest) -> str:
    """After the test."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:24].strip("-")


def resource(claims: Claims) -> str:
    name, _, domain = claims.driver.partition(".")
    return f"{domain}/{name}"


def held(cluster: Cluster) -> list[str]:
    """The overlaps so far."""
    path = cluster.state / "held" / "overlaps"
    return path.read_text().splitlines() if path.exists() else []


def pod(cluster: Cluster, claims: Claims, name: str, kind: str, seconds: int) -> Object:
    """`kind` is how it asks: by the plugin's name, by a claim, or by the class as an extended resource."""
    directory = cluster.state / "held"
    directory.mkdir(exist_ok=True)
    wants: dict[str, object] = {"claims": [{"name": "device"}]}
    if kind != "claim":
        extended = resource(claims) if kind == "plugin" else f"deviceclass.resource.kubernetes.io/{claims.driver}"
        wants = {"limits": {extended: "1"}}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _TAKE.format(seconds)],
        "resources": wants,
        "volumeMounts": [{"name": "held", "mountPath": "/held"}],
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "held", "hostPath": {"path": str(directory)}}],
    }
    if kind == "claim":
        spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "one"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"kind": kind}}, "spec": spec}


@dataclass
class Churn:
    """Pods that come and go until `wanted` of each kind have run; refused ones come again."""

    cluster: Cluster
    claims: Claims
    wanted: Counter[str]
    random: random.Random
    at_once: int = _AT_ONCE
    created_at_once: int = 3
    created: int = 0
    done: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    alive: Counter[str] = field(default_factory=Counter)

    @property
    def ended(self) -> bool:
        return self.done.total() == self.wanted.total()

    def step(self) -> None:
        """One look at all pods; the API server may be away."""
        kubectl = self.claims.kubectl
        try:
            pods = kubectl.every("pods", "--selector=kind")
            over = [found for found in pods if found["status"].get("phase") in ("Succeeded", "Failed")]
            over = [found for found in over if "deletionTimestamp" not in found["metadata"]]
            if over:
                kubectl("delete", "pod", *(found["metadata"]["name"] for found in over), "--wait=false")
        except KubectlFailed:
            return
        for found in over:
            self._count(found)
        self.alive = Counter(found["metadata"]["labels"]["kind"] for found in pods if found not in over)
        self._create(kubectl)

    def _count(self, found: Object) -> None:
        kind, status = found["metadata"]["labels"]["kind"], found["status"]
        if status["phase"] == "Succeeded":
            self.done[kind] += 1
        else:
            began = status.get("startTime", "")
            self.refused.append(f"{began} {kind}: {status.get('reason')}: {status.get('message', '')}")

    def _create(self, kubectl: Kubectl) -> None:
        missing = self.wanted - self.done - self.alive
        count = min(self.created_at_once, missing.total(), self.at_once - self.alive.total())
        kinds = self.random.sample(sorted(missing.elements()), max(0, count))
        names = [f"{kind}-{number}" for number, kind in enumerate(kinds, self.created + 1)]
        made = [
            pod(self.cluster, self.claims, name, kind, self.random.randint(1, 4))
            for name, kind in zip(names, kinds, strict=True)
        ]
        self.created += len(made)
        if not made:
            return
        try:
            kubectl.create(*made)
        except KubectlFailed:
            return
        self.alive.update(kinds)


@dataclass
class Disturbances:
    """What happens to a node: a device moves every few seconds, and now and then something breaks.

    A device that moves from claims waits for half a minute of the daemon's life, so things must not break all the time.
    """

    cluster: Cluster
    plugins: Plugins
    daemon: Daemon
    resource: str
    random: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    next_move: float = 0.0
    next_fault: float = field(default_factory=lambda: time.monotonic() + 10)

    def step(self) -> None:
        """What is due, if anything."""
        now = time.monotonic()
        if now >= self.next_fault:
            self._happen(self.random.choice(["kill", "stop", "kubelet", "api server"]))
            self.next_fault = time.monotonic() + self.random.uniform(20, 60)
        elif now >= self.next_move:
            self._happen("move")
            self.next_move = time.monotonic() + self.random.uniform(2, 8)

    def _happen(self, kind: str) -> None:
        self.happened[kind] += 1
        print(time.strftime("%FT%TZ", time.gmtime()), kind)  # shown with a test that fails
        match kind:
            case "move":
                devices = sorted(device["id"] for device in self.daemon.status(self.resource)["devices"])
                api = self.random.choice(["dra", "device-plugin"])
                moved = f"--device={self.random.choice(devices)}"
                self.daemon.ask("handover", f"--to={api}", f"--resource={self.resource}", moved)
            case "kill":
                self.daemon.process.stop(signal.SIGKILL)
                self.daemon = self.plugins.run_again(self.daemon)
                self._until_it_answers()
            case "stop":
                self.daemon.process.freeze()
                time.sleep(2)  # no fact to wait for: nothing happens
                self.daemon.process.thaw()
            case "kubelet":
                self.cluster.restart("kubelet")
            case _:
                self.cluster.stop("kube-apiserver")
                time.sleep(2)
                self.cluster.start("kube-apiserver")
                until("the API server is ready", lambda: self.cluster.kubectl.works("get", "--raw=/readyz"))

    def _until_it_answers(self) -> None:
        socket = self.daemon.place / "control.sock"
        until("the daemon answers", lambda: socket.exists() and self._answers())

    def _answers(self) -> bool:
        try:
            return bool(self.daemon.status(self.resource))
        except (AssertionError, StopIteration):
            return False


@pytest.fixture
def count(full: bool) -> int:
    """The number of pods."""
    return 300 if full else 30


@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("rights")
def test_random_pods(
    cluster: Cluster, plugins: Plugins, node: Node, claims: Claims, findings: Findings, count: int
) -> None:
    name, seed = resource(claims), int(os.environ.get("PLUGWRIGHT_SEED", "1"))
    daemon = plugins.run({name: {"count": 8, "serve": _SERVE}})
    claims.published(4)
    node.shows(name, capacity=8, allocatable=4)
    chance = random.Random(seed)
    churn = Churn(cluster, claims, Counter(chance.choices(["plugin", "claim", "class"], k=count)), chance)
    disturbances = Disturbances(cluster, plugins, daemon, name, chance)
    began = time.monotonic()
    while not churn.ended:
        churn.step()
        if churn.created < count:
            disturbances.step()
        assert not held(cluster), held(cluster)
        assert time.monotonic() - began < 2000, (churn.done, churn.wanted, churn.alive)
    happened = ", ".join(f"{kind}: {count}" for kind, count in sorted(disturbances.happened.items()))
    findings.notes.append(
        f"both APIs, seed {seed}: {count} pods in {time.monotonic() - began:.0f} s, no overlap, "
        f"{len(churn.refused)} refused; {happened}"
    )
    for refusal in churn.refused:
        findings.notes.append(f"  refused {refusal}")
    # An API server that starts answers "forbidden" until it has read its roles; otherwise the rights must suffice.
    if not disturbances.happened["api server"]:
        assert not [line for line in disturbances.daemon.process.lines() if "forbidden" in line.lower()]
    # The scheduler may have counted a device that moves in that moment, on a node that is always full.
    assert len(churn.refused) <= count // 5


@pytest.mark.full("150 pods, one device at a time")
@pytest.mark.timeout(900)
def test_moves_alone(cluster: Cluster, plugins: Plugins, node: Node, claims: Claims, findings: Findings) -> None:
    """Many plugin pods wait all the time, so that the scheduler binds one to whatever it counts as free."""
    name, chance = resource(claims), random.Random(int(os.environ.get("PLUGWRIGHT_SEED", "1")))
    daemon = plugins.run({name: {"count": 8, "serve": {"api": "both", "split": {"dra": 2}}}})
    node.shows(name, capacity=8, allocatable=6)
    churn = Churn(cluster, claims, Counter(plugin=150), chance, at_once=40, created_at_once=20)
    disturbances = Disturbances(cluster, plugins, daemon, name, chance, next_fault=math.inf)
    began = time.monotonic()
    while not churn.ended:
        churn.step()
        disturbances.step()
        assert time.monotonic() - began < 800, (churn.done, churn.wanted, churn.alive)
    moves, changes = disturbances.happened["move"], daemon.logged("device moves between the APIs")
    arrived = sum(change["phase"] == "published" for change in changes)
    findings.notes.append(
        f"moves alone: 150 plugin pods in {time.monotonic() - began:.0f} s, {moves} moves asked for, "
        f"{arrived} arrived at DRA, {len(churn.refused)} refused (load {os.getloadavg()[0]:.1f})"
    )
    findings.notes += [f"  refused {refusal}" for refusal in churn.refused]
    assert len(churn.refused) <= 3


def test_control(cluster: Cluster, plugins: Plugins, node: Node, claims: Claims) -> None:
    """Two daemons that do not know each other: what the rule keeps from happening."""
    name = resource(claims)
    plugins.run({name: {"count": 8}})
    node.shows(name, capacity=8, allocatable=8)
    plugins.run({name: {"count": 8, "serve": "dra"}})
    claims.published(8)
    for number in range(8):
        for kind in ("plugin", "claim"):
            cluster.kubectl.create(pod(cluster, claims, f"{kind}-{number}", kind, 20))
    until("two containers have one device", lambda: held(cluster), limit=60)
    (cluster.state / "held" / "overlaps").unlink()


@pytest.mark.timeout(600)
def test_handover(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods, claims: Claims, findings: Findings
) -> None:
    name = resource(claims)
    daemon = plugins.run({name: {"count": 8, "serve": {"api": "both", "split": {"dra": 0}}}})
    node.shows(name, capacity=8, allocatable=8)
    running = [pods.create(f"stays-{number}", {name: 1}).runs() for number in range(8)]
    before = [(found.containers(), found.devices()) for found in running]
    daemon.ask("handover", "--to=dra")
    node.shows(name, capacity=8, allocatable=0)
    asks = pods.create("same-manifest", {name: 1})
    freed = before[0][1]
    running.pop(0).delete()
    began = time.monotonic()
    assert asks.runs().devices() == freed, "the name is served by claims now"
    findings.notes.append(
        f"handover: a device was in the next pod {time.monotonic() - began:.1f} s after its pod was gone"
    )
    assert [(found.containers(), found.devices()) for found in running] == before[1:]
    daemon.ask("handover", "--to=device-plugin")
    asks.delete()
    node.shows(name, capacity=8, allocatable=8)
    assert pods.create("back", {name: 1}).runs().devices() == freed
    assert [(found.containers(), found.devices()) for found in running] == before[1:]
