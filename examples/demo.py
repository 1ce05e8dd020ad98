"""`make demo`: a device from its plugin to a pod and back, on the one-process cluster of `plugwright up`.

Every step prints a line and a command to look at it with, and is checked through the cluster's HTTP API; the exit code
is 0 only if all of them happened.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Node, Pod

RESOURCE = "mock/gpu"
CONFIG = """\
resources:
  - name: mock/gpu
    mock: {count: 10, model: Mock-A100, memory: 40Gi, numa: 2, links: pairs, nodes: true, facts: %s}
"""
# A real kubelet has ten seconds between status updates and keeps a resource for five minutes after its plugin has gone.
SHORT_TIMES = ("--heartbeat", "1s", "--plugin-grace", "3s")
LIMIT = 20  # seconds; only a demo that fails waits that long


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plugwright-demo-") as directory:
        root = Path(directory)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PLUGWRIGHT_")}
        environment = {**inherited, "PLUGWRIGHT_CONTROL_SOCKET": f"{root}/plugin.sock"}
        with cluster(root, environment) as facts:
            environment["KUBECONFIG"] = facts["kubeconfig"]
            with Client(KubeConfig.from_file(facts["kubeconfig"]), namespace="default") as api:
                devices(Demo(api, facts, root, environment))
        step("SIGTERM, as Ctrl-C: the cluster has ended and left nothing behind", f"ls {facts['state']}")
        left = [
            path for path in map(Path, (facts["kubeconfig"], facts["control"], node_directory(facts))) if path.exists()
        ]
        expect(not left, f"left behind: {left}")
    print(f"\nAll of it was seen to happen, in {time.monotonic() - began:.0f} seconds.  Next:  plugwright up")


class Demo:
    """The cluster, seen through its API."""

    def __init__(self, api: Client, facts: dict[str, Any], root: Path, environment: dict[str, str]) -> None:
        self.api, self.facts, self.root, self.environment = api, facts, root, environment

    def until_node(self, capacity: str | None, allocatable: str | None) -> None:
        """Returns when the node lists these numbers of the resource; None is for a node without it."""

        def counts(node: Node) -> bool:
            status = node.status
            assert status is not None
            shown = (status.capacity or {}).get(RESOURCE), (status.allocatable or {}).get(RESOURCE)
            return shown == (capacity, allocatable)

        self._until(Node, "node-1", counts, f"{RESOURCE} of the node: {capacity} and {allocatable} allocatable")

    def until_pod(self, name: str, fact: Callable[[Pod], bool], words: str) -> Pod:
        pod = self._until(Pod, name, fact, words)
        assert isinstance(pod, Pod)
        return pod

    def until_event(self, pod: str, reason: str) -> str:
        """The message of the first event with this reason."""
        fields: Any = {"involvedObject.name": pod, "reason": reason}
        for _, event in self.api.watch(Event, namespace="default", fields=fields, server_timeout=LIMIT):
            return event.message or ""
        sys.exit(f"demo: no event {reason} of {pod} within {LIMIT} s")

    def _until(self, kind: type[Any], name: str, fact: Callable[[Any], bool], words: str) -> Any:
        for _, version in self.api.watch(kind, fields={"metadata.name": name}, server_timeout=LIMIT):
            if fact(version):
                return version
        sys.exit(f"demo: {name} was not seen within {LIMIT} s: {words}")

    def plugwright(self, *arguments: str) -> None:
        print(f"    $ plugwright {shlex.join(arguments)}", flush=True)
        done = subprocess.run(command(*arguments), env=self.environment, check=False)
        expect(done.returncode == 0, f"plugwright {arguments[0]} failed")


def devices(demo: Demo) -> None:
    with plugin(demo):
        demo.until_node("10", "10")
        step(f"The node lists {RESOURCE}: 10 in Capacity and in Allocatable", "kubectl describe node node-1")
        ids = allocate(demo)
        refuse(demo)
        fail_and_recover(demo, ids[0])
        demo.api.delete(Pod, "two", grace_period=0)
    demo.until_node("10", "0")
    step("The plugin was stopped: none is allocatable, but the resource is still there", "plugwright node resources")
    print("    A real kubelet keeps it for five minutes; this one keeps it for 3 seconds (--plugin-grace), with a")
    print("    status update every second (--heartbeat), so that the demo is short. Then it is 0 and stale:")
    demo.plugwright("node", "remove", "node-1", RESOURCE, "--wait", "--round", "1s")
    demo.until_node(None, None)
    step("The stale resource is gone from Capacity and Allocatable, and stays away", "kubectl describe node node-1")


def allocate(demo: Demo) -> list[str]:
    demo.api.create(pod("two", "2"))
    demo.until_pod("two", is_running, "Running")
    step(f"A pod asks for two: {demo.until_event('two', 'Scheduled')}", "kubectl describe pod two")
    lines = list(demo.api.log("two"))
    step("Its container gets the environment, mounts and device nodes of a linked pair", "kubectl logs two")
    for line in lines:
        print(f"    {line.rstrip()}")
    [visible] = [line for line in lines if line.startswith("env MOCK_VISIBLE_DEVICES=")]
    ids = visible.partition("=")[2].strip().split(",")
    expect(len(set(ids)) == 2, f"expected two devices, got {ids}")
    for kind in ("mount", "device"):
        expect(sum(line.startswith(kind) for line in lines) == 2, f"expected two lines that begin with {kind}")
    return ids


def refuse(demo: Demo) -> None:
    demo.api.create(pod("nine", "9"))
    message = demo.until_event("nine", "FailedScheduling")
    expect("1 Insufficient mock/gpu" in message, message)
    step(f"A pod that asks for nine has to wait: {message}", "kubectl get events")
    demo.api.delete(Pod, "nine", grace_period=0)


def fail_and_recover(demo: Demo, device_id: str) -> None:
    demo.plugwright("mock", "fail", device_id, "--reason", "fell off the bus")
    demo.until_node("10", "9")
    demo.until_pod("two", lambda pod: health(pod, device_id) == "Unhealthy", f"{device_id} Unhealthy")
    step("One GPU failed: 9 of 10 allocatable, and the pod's status says which", "kubectl get pod two -o yaml")
    demo.plugwright("mock", "recover", device_id)
    demo.until_node("10", "10")
    demo.until_pod("two", lambda pod: health(pod, device_id) == "Healthy", f"{device_id} Healthy")
    step("It recovered: 10 of 10, and Healthy in the pod's status", "kubectl get pod two -o yaml")


@contextmanager
def cluster(root: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Runs `plugwright up` while inside, as a process of its own."""
    environment = {**environment, "XDG_RUNTIME_DIR": str(root)}
    began = time.monotonic()
    with subprocess.Popen(
        command("up", "--bare", *SHORT_TIMES, "-o", "json"), stdout=subprocess.PIPE, env=environment
    ) as up:
        assert up.stdout is not None
        line = up.stdout.readline()
        expect(bool(line), "the cluster did not start")
        facts = json.loads(line)
        step(f"A cluster, after {time.monotonic() - began:.1f} s: API server, scheduler, one node", facts["server"])
        try:
            yield facts
        finally:
            up.terminate()
    expect(up.returncode == 0, "the cluster did not end with 0")


@contextmanager
def plugin(demo: Demo) -> Iterator[None]:
    """Runs `plugwright run` while inside, with the node's kubelet directory, as on a real node."""
    text = CONFIG % (demo.root / "facts")
    file = demo.root / "plugwright.yaml"
    file.write_text(text)
    step("`plugwright run` serves this file at the node, a process as on a real one:", str(file))
    print(text)
    flags = ("--kubelet-dir", node_directory(demo.facts), "--state-dir", str(demo.root / "cordons"))
    arguments = command("run", "-c", str(file), *flags, "--log-level", "error")
    with subprocess.Popen(arguments, env=demo.environment) as daemon:
        try:
            yield
        finally:
            daemon.terminate()
    expect(daemon.returncode == 0, "the plugin did not end with 0")


def pod(name: str, count: str) -> Pod:
    resources = ResourceRequirements(limits={RESOURCE: count})
    main = Container(name="main", image="demo", resources=resources)
    return Pod(metadata=ObjectMeta(name=name), spec=PodSpec(containers=[main]))


def is_running(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase == "Running"


def health(pod: Pod, device_id: str) -> str:
    """The health of a device in the status of the pod that holds it."""
    assert pod.status is not None
    parts = [part for status in pod.status.containerStatuses or () for part in status.allocatedResourcesStatus or ()]
    devices = {device.resourceID: device.health for part in parts for device in part.resources or ()}
    return devices.get(device_id) or ""


def node_directory(facts: dict[str, Any]) -> str:
    return str(facts["nodes"]["node-1"]["kubelet_dir"])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plugwright", *arguments]


def step(text: str, look: str) -> None:
    print(f"\n▸ {text}\n    look at: {look}", flush=True)


def expect(fact: bool, error: str) -> None:
    if not fact:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
