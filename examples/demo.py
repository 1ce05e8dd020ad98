"""`make demo`: devices from their plugin to a pod and back, by count and by claims, on the cluster of `plugwright up`.

Every step prints a line and a command to look at it with, and is checked through the cluster's HTTP API; the exit code
is 0 only if all of them happened.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded prints no traceback

from lightkube import Client, KubeConfig, codecs
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Node, Pod

RESOURCE = "mock/gpu"
CONFIG = """\
resources:
  - name: mock/gpu
    mock: {count: 10, model: Mock-A100, memory: 40Gi, numa: 2, links: pairs, nodes: true, facts: %s}
"""
CLAIMS_CONFIG = """\
resources:
  - name: demo/gpu
    serve: dra
    mock: {count: 4, model: Mock-H200, memory: 141Gi, numa: 2}
"""
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NAME, namespace: default}
spec:
  devices:
    requests:
      - name: gpus
        exactly:
          deviceClassName: gpu.demo
          count: 2
          selectors: [{cel: {expression: 'device.capacity["gpu.demo"].memory.compareTo(quantity("MEMORY")) >= 0'}}]
    constraints:
      - matchAttribute: gpu.demo/model
      - matchAttribute: resource.kubernetes.io/numaNode
"""
POD_WITH_CLAIM = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default}
spec:
  resourceClaims: [{name: gpus, resourceClaimName: NAME}]
  containers: [{name: main, image: demo, resources: {claims: [{name: gpus}]}}]
"""
ResourceClaim = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
ResourceSlice = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
# A real kubelet has ten seconds between status updates and keeps a resource for five minutes after its plugin has gone.
SHORT_TIMES = ("--heartbeat", "0.5s", "--plugin-grace", "2s")
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
                demo = Demo(api, facts, root, environment)
                devices(demo)
                claims(demo)
                if "--page" in sys.argv[1:]:
                    look(facts["page"])
        step("SIGTERM, as Ctrl-C: the cluster has ended and left nothing behind", f"ls {facts['state']}")
        left = [
            path for path in map(Path, (facts["kubeconfig"], facts["control"], node_directory(facts))) if path.exists()
        ]
        expect(not left, f"left behind: {left}")
    print(f"\nAll steps verified in {time.monotonic() - began:.0f} seconds. The cluster has ended; start your own:\n")
    print(shlex.join([relative(Path(sys.executable).with_name("plugwright")), "up"]))


def look(page: str) -> None:
    """Keeps the cluster and its page running until Ctrl-C."""
    step("The cluster and its page run until Ctrl-C", page)
    with suppress(KeyboardInterrupt):
        signal.pause()


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

    def until_claim(self, name: str, fact: Callable[[Any], bool], words: str) -> Any:
        return self._until(ResourceClaim, name, fact, words)

    def until_tainted(self, device: str, *, tainted: bool) -> None:
        """Returns when the slice of the node shows the device with a taint, or without."""
        for _, found in self.api.watch(ResourceSlice, server_timeout=LIMIT):
            shown = {entry["name"]: bool(entry.get("taints")) for entry in found.spec.get("devices") or ()}
            if shown.get(device) is tainted:
                return
        sys.exit(f"demo: the taint of {device} was not seen to be {tainted} within {LIMIT} s")

    def plugwright(self, *arguments: str, **variables: str) -> None:
        print(dim(f"    $ plugwright {shlex.join(arguments)}"), flush=True)
        environment = {**self.environment, **variables}
        with subprocess.Popen(
            command(*arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as done:
            for line in done.stdout or ():
                say(line.rstrip())
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
    step("The plugin stopped: allocatable is 0, but the resource is still listed", "plugwright node resources")
    say(
        "    A real kubelet keeps it for five minutes; this one keeps it for 2 seconds (--plugin-grace), with a status "
        "update every half second (--heartbeat), so that the demo is short. Then it is 0 and stale:"
    )
    demo.plugwright("node", "remove", "node-1", RESOURCE, "--wait", "--round", "0.5s")
    demo.until_node(None, None)
    step(
        "The stale resource is removed from Capacity and Allocatable, and does not return",
        "kubectl describe node node-1",
    )


def allocate(demo: Demo) -> list[str]:
    demo.api.create(pod("two", "2"))
    demo.until_pod("two", is_running, "Running")
    step(f"A pod requests two: {demo.until_event('two', 'Scheduled')}", "kubectl describe pod two")
    lines = list(demo.api.log("two"))
    step("Its container gets the environment, mounts and device nodes of a linked pair", "kubectl logs two")
    for line in lines:
        say(f"    {line.rstrip()}")
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
    step(f"A pod that requests nine waits: {message}", "kubectl get events")
    demo.api.delete(Pod, "nine", grace_period=0)


def fail_and_recover(demo: Demo, device_id: str) -> None:
    demo.plugwright("mock", "fail", device_id, "--reason", "fell off the bus")
    demo.until_node("10", "9")
    demo.until_pod("two", lambda pod: health(pod, device_id) == "Unhealthy", f"{device_id} Unhealthy")
    step("One GPU failed: 9 of 10 allocatable, and the pod's status names it", "kubectl get pod two -o yaml")
    demo.plugwright("mock", "recover", device_id)
    demo.until_node("10", "10")
    demo.until_pod("two", lambda pod: health(pod, device_id) == "Healthy", f"{device_id} Healthy")
    step("It recovered: 10 of 10, and Healthy in the pod's status", "kubectl get pod two -o yaml")


def claims(demo: Demo) -> None:
    """The GPUs of the cluster's own file, which pods get by claims."""
    step(
        "Four more GPUs are served by claims, from the cluster's own file:", "kubectl get deviceclasses,resourceslices"
    )
    say(CLAIMS_CONFIG)
    say("    A claim for two of them:")
    say(CLAIM.replace("NAME", "pair").replace("MEMORY", "40Gi"))
    given = allocate_pair(demo, "pair", "40Gi")
    step(
        "A claim: two GPUs of one model, at least 40 GiB each, on one NUMA node",
        "kubectl get resourceclaim pair -o yaml",
    )
    lines = [line.rstrip() for line in demo.api.log("pair") if "VISIBLE" in line]
    expect(len(lines) == 1 and all(device in lines[0] for device in given), f"expected {given}, got {lines}")
    say(f"    {lines[0]}")
    create_claim(demo, "huge", "200Gi")
    message = demo.until_event("huge", "FailedScheduling")
    expect("1 cannot allocate all claims" in message, message)
    why = demo.until_event("huge", "FailedAllocation")
    expect("excluded by a selector" in why, why)
    step(f"A claim for 200 GiB fits nowhere: {message.partition('.')[0]}", "kubectl describe resourceclaim huge")
    say(f"    {why}")
    taint_and_recover(demo, given)


def taint_and_recover(demo: Demo, given: list[str]) -> None:
    slices = [found.spec for found in demo.api.list(ResourceSlice)]
    free = next(entry["name"] for spec in slices for entry in spec["devices"] if entry["name"] not in given)
    variables = {"PLUGWRIGHT_CONTROL_SOCKET": demo.facts["nodes"]["node-1"]["control_socket"]}
    demo.plugwright("mock", "fail", free, "--reason", "fell off the bus", **variables)
    demo.until_tainted(free, tainted=True)
    create_claim(demo, "second", "40Gi")
    why = demo.until_event("second", "FailedAllocation")
    expect("1 device tainted" in why, why)
    step("A free GPU failed and is tainted, so the next pair waits:", "kubectl get resourceslices -o yaml")
    say(f"    {why}")
    demo.plugwright("mock", "recover", free, **variables)
    demo.until_pod("second", is_running, "Running")
    step("It recovered, the taint is removed, and the pod runs", "kubectl get pods,resourceclaims")


def allocate_pair(demo: Demo, name: str, memory: str) -> list[str]:
    """The devices that the claim gets, once its pod runs."""
    create_claim(demo, name, memory)
    demo.until_pod(name, is_running, "Running")
    claim = demo.until_claim(name, lambda claim: bool((claim.status or {}).get("allocation")), "allocated")
    results = claim.status["allocation"]["devices"]["results"]
    expect(len(results) == 2, f"expected two devices, got {results}")
    return [result["device"] for result in results]


def create_claim(demo: Demo, name: str, memory: str) -> None:
    """A claim and the pod that uses it."""
    text = f"{CLAIM}---\n{POD_WITH_CLAIM}".replace("NAME", name).replace("MEMORY", memory)
    for content in codecs.load_all_yaml(text):
        demo.api.create(content)


@contextmanager
def cluster(root: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Runs `plugwright up` while inside, as a process of its own."""
    environment = {**environment, "XDG_RUNTIME_DIR": str(root)}
    file = root / "claims.yaml"
    file.write_text(CLAIMS_CONFIG)
    began = time.monotonic()
    log, arguments = root / "up.log", command("up", "-c", str(file), *SHORT_TIMES, "-o", "json")
    with (
        log.open("w") as errors,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, env=environment) as up,
    ):
        try:
            assert up.stdout is not None
            line = up.stdout.readline()
            expect(bool(line), f"the cluster did not start: {log.read_text()}")
            facts = json.loads(line)
            step(f"A cluster, after {time.monotonic() - began:.1f} s: API server, scheduler, one node", facts["server"])
            yield facts
        finally:
            up.terminate()
    expect(up.returncode == 0, f"the cluster did not end with 0: {log.read_text()}")


@contextmanager
def plugin(demo: Demo) -> Iterator[None]:
    """Runs `plugwright run` while inside, with the node's kubelet directory, as on a real node."""
    text = CONFIG % (demo.root / "facts")
    file = demo.root / "plugwright.yaml"
    file.write_text(text)
    step("`plugwright run` serves this configuration on the node, in a separate process:", str(file))
    say(text)
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


def say(text: str) -> None:
    """Prints it; on a terminal no line is wider than that, and the rest of a long one is indented."""
    print(wrapped(text), flush=True)


def wrapped(text: str) -> str:
    if not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True) or [
            ""
        ]
    return "\n".join(lines)


def step(text: str, look: str) -> None:
    first, *rest = wrapped(f"▸ {text}").splitlines()
    title = "\n".join([f"{coloured('1;32', '▸')} {coloured('1', first[2:])}", *(coloured("1", line) for line in rest)])
    print(f"\n{title}\n{dim(wrapped(f'    look at: {look}'))}", flush=True)


def dim(text: str) -> str:
    return coloured("36", text)


def coloured(code: str, text: str) -> str:
    """On a terminal, unless NO_COLOR is set."""
    is_plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if is_plain else f"\x1b[{code}m{text}\x1b[0m"


def relative(path: Path) -> str:
    """As short as it can be typed here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def expect(fact: bool, error: str) -> None:
    if not fact:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
