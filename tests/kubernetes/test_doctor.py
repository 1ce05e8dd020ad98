"""`plugwright doctor` on a real node: nothing on a healthy one, and one finding for each prepared fault."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

RESOURCE = "mock/gpu"
Findings = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Case:
    cluster: Cluster
    plugins: Plugins
    daemon: Daemon

    @property
    def directory(self) -> Path:
        return self.cluster.kubelet_dir / "device-plugins"

    @property
    def cdi(self) -> Path:
        return self.cluster.state / "run" / "cdi"

    def report(self, *flags: str) -> dict[str, Any]:
        """The DoctorReport; the exit code must fit it."""
        places = (f"--state-dir={self.daemon.place}", f"--control-socket={self.daemon.place / 'control.sock'}")
        done = self.cluster.run(sys.executable, "-m", "plugwright", "doctor", "-o", "json", *places, *flags)
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == {"healthy": 0, "findings": 1, "unknown": 2}[report["result"]]
        return report

    def findings(self, *flags: str) -> Findings:
        return {each["name"]: each for each in self.report(*flags)["checks"] if each["state"] == "finding"}

    def only(self, name: str, seen: str, fix: str, flags: tuple[str, ...] = ()) -> None:
        """Waits until this is the only finding: a kubelet and a daemon take a moment to notice."""
        until(f"{name} is found alone", lambda: self.findings(*flags).keys() == {name}, last=self.findings)
        finding = self.findings(*flags)[name]
        assert seen in finding["found"]
        assert fix in finding["fix"]

    def healthy(self) -> None:
        until("the node is healthy again", lambda: not self.findings(), last=self.findings)


@pytest.fixture
def case(cluster: Cluster, plugins: Plugins, node: Node) -> Case:
    case = Case(cluster, plugins, plugins.run({RESOURCE: {"count": 4}}))
    case.cdi.mkdir(exist_ok=True)
    node.shows(RESOURCE, capacity=4, allocatable=4)
    return case


@contextmanager
def file(path: Path, content: str) -> Iterator[None]:
    path.write_text(content)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def spec(node: str) -> str:
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": node}]}}
    return json.dumps({"cdiVersion": "0.6.0", "kind": "example.com/fuse", "devices": [device]})


@pytest.mark.essential
def test_a_healthy_node_has_no_finding(case: Case) -> None:
    case.healthy()
    report = case.report()
    checks = {each["name"]: each for each in report["checks"]}
    assert report["result"] == "healthy"
    assert "containerd" in checks["runtime-cdi"]["found"]
    assert RESOURCE in checks["pod-resources"]["found"]
    assert "4 of 4 devices are Healthy" in checks["devices"]["found"]
    known = ("kubelet-root", "kubelet-feature-gates", "topology-policy", "kubelet-checkpoint", "inotify", "holdings")
    assert {checks[name]["state"] for name in known} == {"ok"}


def no_socket(case: Case) -> None:
    (case.directory / "kubelet.sock").unlink()
    case.only("kubelet-socket", "does not exist", "systemctl restart kubelet")
    case.cluster.restart("kubelet")


def no_kubelet(case: Case) -> None:
    case.cluster.stop("kubelet", signal.SIGKILL)
    case.only("kubelet-socket", "no process listens", "systemctl start kubelet")
    case.cluster.start("kubelet")


def no_pod_resources(case: Case) -> None:
    (case.cluster.kubelet_dir / "pod-resources" / "kubelet.sock").unlink()
    case.only("pod-resources", "does not exist", "systemctl restart kubelet")
    case.cluster.restart("kubelet")


def frozen_kubelet(case: Case) -> None:
    case.cluster.kubelet.freeze()
    try:
        case.only("pod-resources", "does not answer", "journalctl -u kubelet")
    finally:
        case.cluster.kubelet.thaw()


def damaged_checkpoint(case: Case) -> None:
    checkpoint = case.directory / "kubelet_internal_checkpoint"
    before = checkpoint.read_bytes()
    checkpoint.write_bytes(before[:-5])
    case.only("kubelet-checkpoint", "is damaged", "plugwright checkpoint verify")
    checkpoint.write_bytes(before)


def open_directory(case: Case) -> None:
    mode = case.directory.stat().st_mode
    case.directory.chmod(0o777)
    case.only("kubelet-directory", "every user may write", "chmod 0750 /var/lib/kubelet/device-plugins")
    case.directory.chmod(mode)


def killed_plugin(case: Case) -> None:
    other = case.plugins.mutant("", "example.com/killed")
    until("it has a socket", lambda: len([path for path in case.directory.iterdir() if path.is_socket()]) > 2)
    other.stop(signal.SIGKILL)
    case.only("plugin-sockets", "no process listens", "rm /var/lib/kubelet/device-plugins/")
    case.cluster.restart("kubelet")


def deprecation(case: Case) -> None:
    with file(case.directory / "DEPRECATION", ""):
        case.only("deprecation-file", "DEPRECATION exists", "rm /var/lib/kubelet/device-plugins/DEPRECATION")


def other_root(case: Case) -> None:
    flags = ("--kubelet-dir=/data/kubelet", "--device-plugins-dir=/var/lib/kubelet/device-plugins")
    case.only("kubelet-root", "--root-dir /var/lib/kubelet", "kubelet.dir=/var/lib/kubelet", flags)


def invalid_spec(case: Case) -> None:
    with file(case.cdi / "nvidia.yaml", "cdiVersion: 0.6.0\nkind: nvidia\n"):
        case.only("cdi-specs", "/var/run/cdi/nvidia.yaml", "rm /var/run/cdi/nvidia.yaml")


def conflicting_specs(case: Case) -> None:
    with file(case.cdi / "a.json", spec("/dev/null")), file(case.cdi / "b.json", spec("/dev/null")):
        case.only("cdi-conflicts", "example.com/fuse=0", "rm /var/run/cdi/b.json")


def misnamed_spec(case: Case) -> None:
    with file(case.cdi / "gpu.yml", spec("/dev/null")):
        case.only("cdi-specs", "/var/run/cdi/gpu.yml", "mv /var/run/cdi/gpu.yml /var/run/cdi/gpu.yaml")


def missing_path(case: Case) -> None:
    with file(case.cdi / "a.json", spec("/dev/none")):
        case.only("cdi-paths", "/dev/none", "nvidia-ctk cdi generate")


def refused_file(case: Case) -> None:
    case.daemon.configure({RESOURCE: {"cuont": 1}})
    case.only("configuration", "unknown key 'cuont'", "plugwright check")
    case.daemon.configure({RESOURCE: {"count": 4}})


def failed_device(case: Case) -> None:
    device = case.daemon.status(RESOURCE)["devices"][0]["id"]
    case.daemon.ask("mock", "fail", device, "--reason", "fell off the bus")
    case.only("devices", "fell off the bus", "plugwright status")
    case.daemon.ask("mock", "recover", device)


def killed_daemon(case: Case) -> None:
    case.daemon.process.stop(signal.SIGKILL)
    found = case.findings()
    assert found.keys() == {"daemon", "plugin-sockets"}
    case.plugins.run_again(case.daemon)


def rival(case: Case) -> None:
    other = case.plugins.mutant("", RESOURCE)
    case.only("rivals", "not listed here", "kubectl get ds -A")
    other.stop()
    case.cluster.restart("kubelet")


def late_file(case: Case) -> None:
    with file(case.daemon.place / "note", ""):
        os.utime(case.daemon.place / "note", (time.time() + 7200,) * 2)
        case.only("clock", "in the future", "timedatectl")


@contextmanager
def mounted(case: Case, options: str) -> Iterator[str]:
    place = case.daemon.place / "disk"
    place.mkdir()
    assert case.cluster.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", place).returncode == 0
    try:
        yield f"--node-dir={place}"
    finally:
        case.cluster.run("umount", place)


def full_disk(case: Case) -> None:
    with mounted(case, "size=4m") as flag:
        case.only("disk-space", "MiB left", "df -h", (flag,))


def read_only_disk(case: Case) -> None:
    with mounted(case, "ro") as flag:
        case.only("state-directory", "read-only file system", "mount -o remount,rw", (flag,))


FAULTS = [
    no_socket, no_kubelet, no_pod_resources, frozen_kubelet, damaged_checkpoint, open_directory, killed_plugin,
    deprecation, other_root, invalid_spec, conflicting_specs, misnamed_spec, missing_path, refused_file, failed_device,
    killed_daemon, rival, late_file, full_disk, read_only_disk,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_a_real_node_is_found_and_gone_when_it_is_repaired(
    case: Case, fault: Callable[[Case], None]
) -> None:
    case.healthy()
    fault(case)
    case.healthy()
