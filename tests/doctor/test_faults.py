"""Each prepared fault is found by exactly one line, with the command that fixes it."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doctor.patient import GPU, Patient, check_only, patient

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint

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
