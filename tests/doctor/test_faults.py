"""Each prepared fault is found by exactly one line, with the command that fixes it."""

import os
import shutil
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
    node.write("etc/cdi/old.json", spec("/dev/null"))


def denied_by_selinux(node: Patient) -> None:
    node.write("sys/fs/selinux/enforce", "1")
    node.write("var/log/audit/audit.log", AUDIT)


def foreign_directory(node: Patient) -> None:
    os.chown(node.plugins, 1000, 1000)


def open_spec(node: Patient) -> None:
    node.write("etc/cdi/null.json", spec("/dev/null", "1")).chmod(0o646)


def file_in_place_of_registry(node: Patient) -> None:
    (node.root / "var/lib/kubelet/plugins_registry").rmdir()
    node.write("var/lib/kubelet/plugins_registry", "")


def group_directory(node: Patient) -> None:
    os.chown(node.plugins, 0, 1000)
    node.plugins.chmod(0o770)


def directory_that_is_a_file(node: Patient) -> None:
    shutil.rmtree(node.root / "run/cdi")
    node.write("run/cdi", "")


def dangling_directory(node: Patient) -> None:
    shutil.rmtree(node.root / "run/cdi")
    (node.root / "run/cdi").symlink_to("/run/none")


def runtime_that_ended(node: Patient) -> None:
    (node.root / "run/containerd").mkdir()
    stale_socket(node.root / "run/containerd/containerd.sock")


def endpoint(node: Patient, path: str) -> None:
    node.write("var/lib/kubelet/config.yaml", f"containerRuntimeEndpoint: unix://{path}\n")


def no_uvm_module(node: Patient) -> None:
    node.write("proc/modules", "nvidia 1 1 - Live 0x0\n")
    (node.root / "dev/nvidia-uvm").unlink(missing_ok=True)


def link_to_other_library(node: Patient) -> None:
    libraries = "usr/lib/x86_64-linux-gnu"
    node.write(f"{libraries}/libnvidia-ml.so.550.1.2", "")
    (node.root / libraries / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.1.2")


def watches_used_up(node: Patient) -> None:
    node.write("proc/sys/fs/inotify/max_user_watches", "10\n")
    (node.root / "proc/70/fd/5").symlink_to("anon_inode:inotify")
    node.write("proc/70/fdinfo/5", "pos:\t0\n" + "inotify wd:1 ino:2 sdev:3 mask:3b4\n" * 10)


def files_of_kubelet_used_up(node: Patient) -> None:
    node.write("proc/70/limits", "Max open files            2    2    files\n")
    for number in range(2):
        (node.root / f"proc/70/fd/{number}").symlink_to("socket:[1]")


def low_limit_of_daemon(node: Patient) -> None:
    node.write("proc/90/cmdline", "/usr/bin/python\0-m\0plugwright\0run\0")
    node.write("proc/90/limits", "Max open files            64    64    files\n")
    (node.root / "proc/90/fd").mkdir()


def dangling_state_directory(node: Patient) -> None:
    shutil.rmtree(node.root / "var/lib/plugwright")
    (node.root / "var/lib/plugwright").symlink_to("/data/none")


def removed_control_socket(node: Patient) -> None:
    """A file in the place of its directory keeps the daemon from making the socket again."""
    node.control.unlink()
    node.control.parent.rmdir()
    node.control.parent.touch()
    node.write("proc/90/cmdline", "/usr/bin/python\0/usr/bin/plugwright\0run\0")


def file_in_a_spec(node: Patient) -> None:
    node.write("dev/plain", "")
    node.write("run/cdi/plain.json", spec("/dev/plain", "1"))


def silent_plugin(node: Patient) -> None:
    """A plugin that has stopped accepting connections: the kernel queues them."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(node.plugins / "third.sock"))
    listening.listen()
    node.kept.append(listening)


def plugin_without_its_socket(node: Patient) -> None:
    """What /proc shows of a plugin that still listens on the socket that the kubelet has removed."""
    table = "Num RefCount Protocol Flags Type St Inode Path\n"
    for inode, name in (("777", "third.sock"), ("778", "kubelet.sock")):
        table += f"0000: 00000002 00000000 00010000 0001 01 {inode} /var/lib/kubelet/device-plugins/{name}\n"
    node.write("proc/80/net/unix", table)
    for link, goal in (("ns/net", "net:[4026531840]"), ("fd/3", "socket:[777]"), ("root", str(node.root))):
        (node.root / "proc/80" / link).parent.mkdir(exist_ok=True)
        (node.root / "proc/80" / link).symlink_to(goal)


def other_cpu_policy(node: Patient) -> None:
    node.write("var/lib/kubelet/config.yaml", "cpuManagerPolicy: static\n")
    node.write("var/lib/kubelet/cpu_manager_state", {"policyName": "none", "defaultCpuSet": "", "checksum": 1})


def handler_without_program(node: Patient) -> None:
    handler = 'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options'
    node.write("etc/containerd/conf.d/nvidia.toml", f'[{handler}]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n')


def crio_handler_without_program(node: Patient) -> None:
    (node.root / "etc/containerd/config.toml").unlink()
    node.write("etc/crio/crio.conf.d/nvidia.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/none"\n')


def no_fabric_manager(node: Patient) -> None:
    second_gpu(node)
    node.write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Device Minor: \t 0\n")
    node.write("sys/bus/pci/devices/0000:05:00.0/vendor", "0x10de\n")
    node.write("sys/bus/pci/devices/0000:05:00.0/class", "0x068000\n")


def denied_without_an_audit_daemon(node: Patient) -> None:
    node.write("sys/fs/selinux/enforce", "1")
    (node.root / "var/log/audit/audit.log").unlink()
    node.write("var/log/messages", f"kernel: {AUDIT}")


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
    "foreign-directory": (
        foreign_directory,
        "kubelet-directory", "user 1000", "chown 0:0 /var/lib/kubelet/device-plugins",
    ),
    "group-directory": (
        group_directory, "kubelet-directory", "group 1000 may write", "chmod g-w /var/lib/kubelet/device-plugins",
    ),
    "closed-directory": (
        lambda node: node.plugins.chmod(0o500),
        "kubelet-directory", "mode 0500", "chmod 0750 /var/lib/kubelet/device-plugins",
    ),
    "closed-socket": (
        lambda node: (node.plugins / "kubelet.sock").chmod(0o550),
        "kubelet-socket", "mode 0550", "restart kubelet",
    ),
    "closed-pod-resources": (
        lambda node: (node.root / "var/lib/kubelet/pod-resources").chmod(0),
        "pod-resources", "mode 0000", "chmod 0750 /var/lib/kubelet/pod-resources",
    ),
    "closed-state": (
        lambda node: (node.root / "var/lib/plugwright").chmod(0o500),
        "state-directory", "mode 0500", "chmod 0700 /var/lib/plugwright",
    ),
    "closed-specs": (
        lambda node: (node.root / "run/cdi").chmod(0o500), "cdi-specs", "mode 0500", "chmod 0755 /var/run/cdi",
    ),
    "open-specs": (
        lambda node: (node.root / "etc/cdi").chmod(0o777), "cdi-specs", "every user", "chmod 0755 /etc/cdi",
    ),
    "open-spec": (
        open_spec, "cdi-specs", "every user may write to /etc/cdi/null.json", "chmod 0644 /etc/cdi/null.json",
    ),
    "no-registry": (
        lambda node: (node.root / "var/lib/kubelet/plugins_registry").rmdir(),
        "plugins-registry", "plugins_registry does not exist", "systemctl restart kubelet",
    ),
    "registry-file": (
        file_in_place_of_registry, "plugins-registry", "is not a directory", "rm -f /var/lib/kubelet/plugins_registry",
    ),
    "one-instance": (
        lambda node: node.write("proc/sys/fs/inotify/max_user_instances", "1\n"),
        "inotify", "0 of 1 inotify instances", "sysctl -w fs.inotify.max_user_instances=8192",
    ),
    "one-watch": (
        lambda node: node.write("proc/sys/fs/inotify/max_user_watches", "1\n"),
        "inotify", "0 of 1 inotify watches", "sysctl -w fs.inotify.max_user_watches=524288",
    ),
    "empty-checkpoint": (
        lambda node: node.write("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", ""),
        "kubelet-checkpoint", "the file is empty", "plugwright checkpoint verify",
    ),
    "spec-directory-file": (
        directory_that_is_a_file, "cdi-specs", "/var/run/cdi is not a directory", "mkdir -m 0755 /var/run/cdi",
    ),
    "spec-directory-link": (
        dangling_directory, "cdi-specs", "/var/run/cdi is not a directory", "rm /var/run/cdi",
    ),
    "spec-name": (
        lambda node: node.write("etc/cdi/gpu.yml", spec("/dev/fuse", "1")),
        "cdi-specs", "must end in .json or .yaml", "mv /etc/cdi/gpu.yml /etc/cdi/gpu.yaml",
    ),
    "spec-link": (
        lambda node: (node.root / "etc/cdi/gpu.yaml").symlink_to("/none"),
        "cdi-specs", "/etc/cdi/gpu.yaml: it cannot be read: No such file", "rm /etc/cdi/gpu.yaml",
    ),
    "runtime-ended": (
        runtime_that_ended,
        "container-runtime", "no process listens on containerd.sock", "systemctl restart containerd",
    ),
    "runtime-elsewhere": (
        lambda node: endpoint(node, "/run/other.sock"),
        "container-runtime", "/run/other.sock does not exist", "correct containerRuntimeEndpoint",
    ),
    "cri-disabled": (
        lambda node: node.write("etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n'),
        "container-runtime", "cri is in disabled_plugins", "remove cri from disabled_plugins",
    ),
    "no-uvm-module": (no_uvm_module, "nvidia-module", "without the module nvidia_uvm", "modprobe nvidia-uvm"),
    "other-library": (
        link_to_other_library, "nvidia-versions", "570.86.15, the libraries are 550.1.2", "modprobe nvidia",
    ),
    "old-minor": (
        lambda node: node.make_device("dev/nvidia0", (195, 5)),
        "device-numbers", "/dev/nvidia0 has the minor number 5, the driver 0", "rm /dev/nvidia0",
    ),
    "closed-node": (
        lambda node: (node.root / "dev/nvidia0").chmod(0o600),
        "device-access", "only their owner may open /dev/nvidia0", "chmod 0666 /dev/nvidia0",
    ),
    "watches": (
        watches_used_up, "inotify", "10 of 10 inotify watches", "sysctl -w fs.inotify.max_user_watches=524288",
    ),
    "kubelet-files": (files_of_kubelet_used_up, "open-files", "kubelet (process 70) has 2 of 2", "restart kubelet"),
    "low-limit": (low_limit_of_daemon, "open-files", "of 64 open files", "LimitNOFILE"),
    "dangling-state": (
        dangling_state_directory,
        "state-directory", "a link to a directory that does not exist", "readlink -m /var/lib/plugwright",
    ),
    "no-control-socket": (
        removed_control_socket, "daemon", "plugwright (process 90) runs", "restart the daemon",
    ),
    "apparmor": (
        lambda node: node.write("var/log/kern.log", DENIED), "apparmor", "/dev/nvidia0", "appArmorProfile",
    ),
    "hook-mode": (
        lambda node: (node.root / "usr/bin/hook").chmod(0o644),
        "cdi-paths", "/usr/bin/hook is not an executable program", "chmod 0755 /usr/bin/hook",
    ),
    "spec-plain-file": (
        file_in_a_spec, "cdi-paths", "/dev/plain is not a device node", "rm -r /dev/plain",
    ),
    "silent-plugin": (
        silent_plugin, "plugin-answers", "device-plugins/third.sock does not answer", "restart that plugin",
    ),
    "lost-plugin": (
        plugin_without_its_socket,
        "lost-plugins", "process 80 listens on /var/lib/kubelet/device-plugins/third.sock", "systemctl status 80",
    ),
    "dra-state": (
        lambda node: node.write("var/lib/kubelet/dra_manager_state", {"Data": "{}", "Checksum": 1}),
        "kubelet-state", "does not match its checksum", "rm /var/lib/kubelet/dra_manager_state",
    ),
    "cpu-state": (
        lambda node: node.write("var/lib/kubelet/cpu_manager_state", ""),
        "kubelet-state", "cpu_manager_state is damaged", "rm /var/lib/kubelet/cpu_manager_state",
    ),
    "cpu-policy": (
        other_cpu_policy,
        "kubelet-state", "is of policy none, the kubelet has cpuManagerPolicy static", "drain the node",
    ),
    "kubelet-yaml": (
        lambda node: node.write("var/lib/kubelet/config.yaml", "{: ["),
        "kubelet-configuration", "/var/lib/kubelet/config.yaml must be YAML", "correct the file",
    ),
    "kubelet-file": (
        lambda node: (node.root / "var/lib/kubelet/config.yaml").unlink(),
        "kubelet-configuration", "/var/lib/kubelet/config.yaml does not exist", "kubelet-config",
    ),
    "containerd-file": (
        lambda node: node.write("etc/containerd/config.toml", "= ["),
        "container-runtime", "config.toml is not TOML", "systemctl restart containerd",
    ),
    "handler": (
        handler_without_program,
        "runtime-programs", "nvidia is /usr/bin/nvidia-container-runtime, which does not", "nvidia-container-toolkit",
    ),
    "crio-handler": (crio_handler_without_program, "runtime-programs", "nvidia is /usr/bin/none", "install it"),
    "no-fabric-manager": (
        no_fabric_manager, "nvidia-fabric", "2 GPUs behind 1 NVSwitches", "systemctl enable --now nvidia-fabricmanager",
    ),
    "selinux-messages": (denied_without_an_audit_daemon, "selinux", "denied", "restorecon"),
    "threads": (
        lambda node: node.write("proc/sys/kernel/pid_max", "900\n"),
        "processes", "900 of 900 threads (kernel.pid_max)", "sysctl -w kernel.pid_max=1800",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "name", "seen", "fix"), SIMPLE.values(), ids=SIMPLE)
async def test_a_fault_is_one_finding(root: Path, make: Fault, name: str, seen: str, fix: str) -> None:
    async with patient(root) as node, node.served_here():
        if (make in (foreign_directory, group_directory) or seen == "mode 0000") and os.getuid():
            pytest.skip("this user may not give directories away, or see into closed ones")
        if name in ("nvidia-device-nodes", "device-numbers", "device-access") and not node.has_devices:
            pytest.skip("this user may not make device nodes")
        await node.settled()
        if name.startswith("nvidia") and not node.has_devices:
            node.write(f"sys/bus/pci/devices/{GPU}/vendor", "0x10de\n")
        make(node)
        check_only(await node.examine(), name, seen, fix)
