"""Each prepared fault is found by exactly one line, with the command that fixes it."""

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_dra import write_kubeconfig
from tests.doctor.patient import GPU, Patient, findings, patient
from tests.sdk.test_rivals import rival

from plugwright import Device, Plugin, Settings, serving
from plugwright.doctor.doctor_report import DoctorReport
from plugwright.doctor.examined_node import DoctorTarget, ExaminedNode
from plugwright.doctor.host_checks import state_directory
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.sdk.plugin_calls import StallDetector
from plugwright.testing import pod_requesting

AUDIT = f'type=AVC msg=audit({time.time():.3f}:1): avc:  denied  {{ write }} name="kubelet.sock"\n'
DENIED = f'kernel: audit({time.time():.3f}:1): apparmor="DENIED" operation="open" name="/dev/nvidia0"\n'
SPEC = {"cdiVersion": "0.6.0", "kind": "example.com/fuse"}


def stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def spec(node: str, name: str = "0") -> dict[str, object]:
    return {**SPEC, "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": node}]}}]}


def other_root(node: Patient) -> None:
    node.write("proc/70/cmdline", "/usr/bin/kubelet\0--root-dir\0/data/kubelet\0")


def gate_off_by_flag(node: Patient) -> None:
    node.write("proc/70/cmdline", "/usr/bin/kubelet\0--feature-gates=DevicePluginCDIDevices=false,Other=true\0")


def many_numa_nodes(node: Patient) -> None:
    node.write("var/lib/kubelet/config.yaml", "topologyManagerPolicy: restricted\n")
    for number in range(16):
        (node.root / f"sys/devices/system/node/node{number}").mkdir(exist_ok=True)


def list_of_another_plugin(node: Patient) -> None:
    content = checkpoint.encode(Checkpoint((), {"mock/gpu": ("GPU-7",)}))
    (node.plugins / "kubelet_internal_checkpoint").write_bytes(content)


def inotify_used_up(node: Patient) -> None:
    node.write("proc/sys/fs/inotify/max_user_instances", "3\n")
    for number in range(3):
        (node.root / f"proc/70/fd/{number}").symlink_to("anon_inode:inotify")


def own_files_used_up(node: Patient) -> None:
    node.write("proc/90/cmdline", "/usr/bin/python\0/usr/bin/plugwright\0run\0")
    node.write("proc/90/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files            4    4    files\n")
    (node.root / "proc/90/fd").mkdir()
    for number in range(4):
        (node.root / f"proc/90/fd/{number}").symlink_to("socket:[1]")


def from_the_future(node: Patient) -> None:
    path = node.write("var/lib/plugwright/note", "")
    os.utime(path, (time.time() + 7200,) * 2)


def no_driver(node: Patient) -> None:
    (node.root / "proc/driver/nvidia/version").unlink()
    node.write("proc/modules", "ext4 1 0 - Live 0x0\n")


def nouveau(node: Patient) -> None:
    no_driver(node)
    node.write("proc/modules", "nouveau 1 0 - Live 0x0\n")


def second_gpu(node: Patient) -> None:
    for name, content in (("vendor", "0x10de\n"), ("class", "0x030200\n"), ("config", "\x0e\x10")):
        node.write(f"sys/bus/pci/devices/0000:02:00.0/{name}", content)


def gpu_off_the_bus(node: Patient) -> None:
    (node.root / f"sys/bus/pci/devices/{GPU}/config").write_bytes(b"\xff" * 64)


def file_in_place_of_node(node: Patient) -> None:
    (node.root / "dev/nvidia0").unlink()
    (node.root / "dev/nvidia0").mkdir()


def directory_in_place_of_checkpoint(node: Patient) -> None:
    (node.plugins / "kubelet_internal_checkpoint").unlink()
    (node.plugins / "kubelet_internal_checkpoint").mkdir()


def hidden_spec(node: Patient) -> None:
    node.write("dev/null", "")
    node.write("etc/cdi/old.json", spec("/dev/null"))


def denied_by_selinux(node: Patient) -> None:
    node.write("sys/fs/selinux/enforce", "1")
    node.write("var/log/audit/audit.log", AUDIT)


Fault = Callable[[Patient], object]
SIMPLE: dict[str, tuple[Fault, str, str, str]] = {
    "root-dir": (other_root, "kubelet-root", "--root-dir /data/kubelet", "kubelet.dir=/data/kubelet"),
    "open-directory": (
        lambda node: node.plugins.chmod(0o777),
        "kubelet-directory", "every user may write", "chmod 0750 /var/lib/kubelet/device-plugins",
    ),
    "left-socket": (
        lambda node: stale_socket(node.plugins / "nvidia-gpu.sock"),
        "plugin-sockets", "nvidia-gpu.sock", "rm /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
    ),
    "left-driver": (
        lambda node: stale_socket(node.root / "var/lib/kubelet/plugins_registry/gpu.sock"),
        "plugins-registry", "gpu.sock", "rm /var/lib/kubelet/plugins_registry/gpu.sock",
    ),
    "deprecation": (
        lambda node: node.write("var/lib/kubelet/device-plugins/DEPRECATION", ""),
        "deprecation-file", "DEPRECATION exists", "rm /var/lib/kubelet/device-plugins/DEPRECATION",
    ),
    "no-pod-resources": (
        lambda node: (node.root / "var/lib/kubelet/pod-resources/kubelet.sock").unlink(),
        "pod-resources", "does not exist", "systemctl restart kubelet",
    ),
    "damaged-checkpoint": (
        lambda node: node.write("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", '{"Data": {}'),
        "kubelet-checkpoint", "is damaged", "plugwright checkpoint verify",
    ),
    "checkpoint-directory": (
        directory_in_place_of_checkpoint,
        "kubelet-checkpoint", "cannot be read", "systemctl restart kubelet",
    ),
    "gate-off": (
        lambda node: node.write("var/lib/kubelet/config.yaml", "featureGates: {KubeletPodResources: false}\n"),
        "kubelet-feature-gates", "KubeletPodResources off in /var/lib/kubelet/config.yaml", "featureGates",
    ),
    "gate-flag": (gate_off_by_flag, "kubelet-feature-gates", "DevicePluginCDIDevices off", "featureGates"),
    "numa-nodes": (many_numa_nodes, "topology-policy", "16 NUMA nodes", "max-allowable-numa-nodes"),
    "rival-before-us": (list_of_another_plugin, "rivals", "not listed here: GPU-7", "kubectl get ds -A"),
    "cdi-off": (
        lambda node: node.write(
            "etc/containerd/conf.d/a.toml",
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n',
        ),
        "runtime-cdi", "CDI is off in containerd", "enable_cdi = true",
    ),
    "cdi-directory": (
        lambda node: node.write(
            "etc/containerd/config.toml",
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/etc/cdi"]\n',
        ),
        "runtime-cdi", "not in /var/run/cdi", "add /var/run/cdi to cdi_spec_dirs",
    ),
    "invalid-spec": (
        lambda node: node.write("etc/cdi/nvidia.json", {"cdiVersion": "0.6.0", "kind": "nvidia"}),
        "cdi-specs", "/etc/cdi/nvidia.json", "rm /etc/cdi/nvidia.json",
    ),
    "spec-no-json": (
        lambda node: node.write("run/cdi/x.json", "{"), "cdi-specs", "not JSON", "rm /var/run/cdi/x.json",
    ),
    "conflict": (
        lambda node: node.write("run/cdi/other.json", spec("/dev/fuse")),
        "cdi-conflicts", "example.com/fuse=0", "rm /var/run/cdi/other.json",
    ),
    "hidden-spec": (
        hidden_spec,
        "cdi-overrides", "/etc/cdi/old.json is hidden", "rm /etc/cdi/old.json",
    ),
    "missing-path": (
        lambda node: node.write("etc/cdi/gone.json", spec("/dev/gone", "1")),
        "cdi-paths", "/dev/gone", "nvidia-ctk cdi generate",
    ),
    "no-driver": (no_driver, "nvidia-module", "no NVIDIA kernel module", "modprobe nvidia"),
    "nouveau": (nouveau, "nvidia-module", "nouveau is loaded", "blacklist nouveau"),
    "lost-gpu": (second_gpu, "nvidia-gpus", "0000:02:00.0 of 2 GPUs", "--gpu-reset -i 0000:02:00.0"),
    "off-the-bus": (gpu_off_the_bus, "nvidia-gpus", f"{GPU} do not answer", "power-cycle"),
    "mismatch": (
        lambda node: (node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15").rename(
            node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1.2"
        ),
        "nvidia-versions", "570.86.15, the libraries are 580.1.2", "modprobe nvidia",
    ),
    "no-uvm": (
        lambda node: (node.root / "dev/nvidia-uvm").unlink(),
        "nvidia-device-nodes", "/dev/nvidia-uvm do not exist", "nvidia-modprobe",
    ),
    "node-directory": (file_in_place_of_node, "nvidia-device-nodes", "no character devices", "rm -r /dev/nvidia0"),
    "old-major": (
        lambda node: node.make_device("dev/nvidia-uvm", (507, 0)),
        "device-numbers", "/dev/nvidia-uvm has 507, the driver 511", "rm /dev/nvidia-uvm",
    ),
    "inotify": (inotify_used_up, "inotify", "3 of 3 inotify instances", "fs.inotify.max_user_instances"),
    "open-files": (
        lambda node: node.write("proc/sys/fs/file-nr", "99999\t0\t100000\n"),
        "open-files", "99999 of 100000", "fs.file-max",
    ),
    "own-files": (own_files_used_up, "open-files", "4 of 4", "LimitNOFILE"),
    "clock": (from_the_future, "clock", "in the future", "timedatectl"),
    "selinux": (
        denied_by_selinux,
        "selinux", "denied", "restorecon",
    ),
    "apparmor": (
        lambda node: node.write("var/log/kern.log", DENIED), "apparmor", "/dev/nvidia0", "appArmorProfile",
    ),
}  # fmt: skip


def check_only(report: DoctorReport, name: str, seen: str, fix: str) -> None:
    found = findings(report)
    assert [check.name for check in found] == [name], found
    assert seen in found[0].found
    assert fix in found[0].fix
    assert found[0].why
    assert report.result == "findings"


@pytest.mark.parametrize(("make", "name", "seen", "fix"), SIMPLE.values(), ids=SIMPLE)
async def test_a_fault_is_one_finding(root: Path, make: Fault, name: str, seen: str, fix: str) -> None:
    async with patient(root) as node, node.served_here():
        if name in ("nvidia-device-nodes", "device-numbers") and not node.has_devices:
            pytest.skip("this user may not make device nodes")
        await node.settled()
        if name.startswith("nvidia") and not node.has_devices:
            node.write(f"sys/bus/pci/devices/{GPU}/vendor", "0x10de\n")
        make(node)
        check_only(await node.examine(), name, seen, fix)


async def test_a_kubelet_that_has_ended_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        assert node.kubelet is not None
        await node.kubelet.stop()
        check_only(await node.examine(), "kubelet-socket", "no process listens", "systemctl start kubelet")
        await node.kubelet.start()


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_a_registration_socket_that_is_none_is_one_finding(root: Path, kind: str) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        kubelet = node.plugins / "kubelet.sock"
        kubelet.unlink()
        if kind == "file":
            kubelet.write_text("")
        seen = "does not exist" if kind == "missing" else "is not a socket"
        check_only(await node.examine(), "kubelet-socket", seen, "systemctl restart kubelet")


async def test_a_missing_directory_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.plugins.rename(node.plugins.with_name("elsewhere"))
        check_only(await node.examine(), "kubelet-directory", "does not exist", "--device-plugins-dir")
        node.plugins.with_name("elsewhere").rename(node.plugins)


async def test_a_killed_daemon_is_one_finding_beside_its_socket(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        assert node.daemon is not None
        node.daemon.signal(signal.SIGKILL)
        await node.daemon.ends()
        found = {check.name: check for check in findings(await node.examine())}
        assert found.keys() == {"daemon", "plugin-sockets"}
        assert "no process listens" in found["daemon"].found
        assert "systemctl start plugwright" in found["daemon"].fix


async def test_a_full_disk_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        report = await node.examine(least_free=2**62)
    check_only(report, "disk-space", "MiB left", "df -h /var/lib/plugwright")


async def test_a_state_directory_that_is_a_file_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.write("var/lib/other", "")
        report = await node.examine(node_dir=Path("/var/lib/other"))
    check_only(report, "state-directory", "is not a directory", "mv /var/lib/other")


async def test_a_read_only_state_directory_is_one_finding(root: Path) -> None:
    read_only = read_only_directory()
    if read_only is None:
        pytest.skip("no read-only file system here")
    async with patient(root) as node, node.served_here():
        await node.settled()
        (root / "var/lib/mounted").symlink_to(read_only)
        view = ExaminedNode(DoctorTarget(root=Path("/"), node_dir=root / "var/lib/mounted"))
        check = state_directory(view)
    assert (check.state, "is on a read-only file system" in check.found) == ("finding", True)
    assert "mount -o remount,rw" in check.fix


def read_only_directory() -> str | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        with suppress(OSError):
            if Path(place).is_dir() and os.statvfs(place).f_flag & os.ST_RDONLY:
                return place
    return None


def configured(**entry: Any) -> dict[str, object]:
    return {"resources": [{"name": "mock/gpu", "mock": {"count": 4}, **entry}]}


async def test_missing_expected_devices_are_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("etc/plugwright.yaml", configured(expect=8))
        async with node.served():
            await node.until(lambda report: report["resources"][0]["shortfall"] and report["holdings"]["complete"])
            check_only(await node.examine(), "expected-devices", "expected 8, found 4", "lspci")


async def test_a_refused_configuration_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.write("etc/new", configured(cuont=1)).rename(node.root / "etc/plugwright.yaml")
        await node.until(lambda report: report["daemon"]["config"]["refused"])
        check_only(await node.examine(), "configuration", "unknown key 'cuont'", "plugwright check")


async def test_a_last_good_configuration_in_force_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        async with node.served():
            await node.settled()
        node.write("etc/plugwright.yaml", configured(cuont=1))
        async with node.served():
            await node.until(lambda report: report["resources"] and report["holdings"]["complete"])
            report = await node.examine()
    [finding] = findings(report)
    assert (finding.name, "plugwright check" in finding.fix) == ("configuration", True)
    assert "kept from before the last start" in finding.why or "last good version" in finding.found


async def test_unreadable_cordons_are_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("var/lib/plugwright/cordons.json", "{")
        async with node.served():
            await node.until(lambda report: report["cordonsUnreadable"] and report["holdings"]["complete"])
            check_only(await node.examine(), "cordons", "cannot be read", "mv /var/lib/plugwright/cordons.json")


async def test_a_resource_of_another_release_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served("--release=fleet/first"):
        await node.settled()
        second = Patient(root, node.kubelet)
        own = ("--release=fleet/second", "--control-socket", root / "run/second.sock")
        async with second.served(*own, until="resource is owned by another daemon"):
            report = await node.examine(control_socket=Path("/run/second.sock"))
    check_only(report, "owner", "release fleet/first", "helm list -A")


async def test_a_failed_device_is_one_finding_and_a_cordoned_one_none(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        first, second, *_ = (device["id"] for device in node.ask(do="report")["resources"][0]["devices"])
        node.ask(do="cordon", resource="mock/gpu", id=first, reason="fan")
        await node.until(lambda report: any(device["cordoned"] for device in report["resources"][0]["devices"]))
        assert findings(await node.examine()) == []
        node.ask(do="plugin", resource="mock/gpu", name="fail", arguments={"id": second, "reason": "fell off"})
        await node.until(lambda report: report["resources"][0]["devices"][1]["health"] == "Unhealthy")
        check_only(await node.examine(), "devices", f"{second} Unhealthy, mock: fell off", "plugwright status")


async def test_another_plugin_for_the_resource_is_one_finding(root: Path) -> None:
    stalls = StallDetector(1.0)
    async with patient(root) as node, node.served_here() as daemon:
        await node.settled()
        await daemon.rivals.compared.until(lambda: daemon.rivals.compared.count)
        assert node.kubelet is not None
        settings = Settings(kubelet_dir=root / "var/lib/kubelet")
        async with rival(node.kubelet.kubelet, settings, stalls, "GPU-1"):
            await node.until(lambda report: report["resources"][0]["rival"])
            report = await node.examine()
    stalls.close()
    check_only(report, "rivals", "GPU-1", "kubectl get ds -A")


async def test_a_driver_without_an_api_server_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("etc/plugwright.yaml", {**configured(serve="dra"), "host": {"cdi": str(root / "run/cdi")}})
        kubeconfig = write_kubeconfig(root / "etc", "https://127.0.0.1:1", root / "etc")
        flags = ("--node-name=worker-1", "--kubeconfig", kubeconfig)
        async with node.served(*flags, until="registered"):
            await node.until(lambda report: report["resources"][0]["driver"]["state"] == "unpublished")
            report = await node.examine()
    check_only(report, "dra-driver", "is unpublished", "plugwright dra slices")


class Earlier(Plugin):
    """The plugin of `mock/gpu` before ours, which has other ids for the same hardware."""

    resource = "mock/gpu"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("old-7")]


async def test_a_device_held_under_the_id_of_an_earlier_plugin_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        assert node.kubelet is not None
        async with serving(Earlier(), settings=Settings(kubelet_dir=root / "var/lib/kubelet")):
            await node.kubelet.endpoint("mock/gpu")
            pod = await node.kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1}))
        (root / f"var/lib/kubelet/pods/{pod.uid}").mkdir()
        async with node.served_here():
            await node.settled()
            check_only(await node.examine(), "held-devices", "old-7", f"delete the pods with uid {pod.uid}")
