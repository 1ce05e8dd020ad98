"""A node to examine: files of a healthy machine below a root, an emulated kubelet and a daemon beside them."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cli.processes import Running, python, running
from tests.observed_kubelet import ObservedKubelet, observed_kubelet

from plugwright import Settings, Timeouts, serving
from plugwright.doctor.diagnosis import diagnose
from plugwright.doctor.doctor_report import DoctorCheck, DoctorReport
from plugwright.doctor.examined_node import DoctorTarget
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.daemon import Daemon
from plugwright.system import json_lines

__all__ = ["GPU", "Patient", "check_only", "findings", "patient"]

GPU = "0000:01:00.0"
FILES: Mapping[str, str] = {
    "proc/1/comm": "systemd\n",
    "proc/1/cmdline": "/sbin/init\0",
    "proc/70/comm": "kubelet\n",
    "proc/70/cmdline": "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0",
    "proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
    "proc/loadavg": "0.10 0.20 0.30 1/900 4242\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/threads-max": "100000\n",
    "proc/devices": "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n",
    "proc/sys/fs/inotify/max_user_instances": "128\n",
    "proc/sys/fs/file-nr": "4000\t0\t100000\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
    f"proc/driver/nvidia/gpus/{GPU}/information": "Model: NVIDIA H100\nDevice Minor: \t 0\n",
    f"sys/bus/pci/devices/{GPU}/vendor": "0x10de\n",
    f"sys/bus/pci/devices/{GPU}/class": "0x030200\n",
    f"sys/bus/pci/devices/{GPU}/config": "\x0e\x10..",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/module/apparmor/parameters/enabled": "Y\n",
    "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15": "",
    "usr/bin/hook": "",
    "var/log/kern.log": 'kernel: audit(1.5:1): apparmor="DENIED" name="/dev/nvidia0"\n',  # long ago
    "var/log/audit/audit.log": "",
    "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\nfeatureGates: {KubeletPodResources: true}\n",
    "etc/containerd/config.toml": 'version = 3\nimports = ["conf.d/*.toml"]\n',
    "etc/plugwright.yaml": json.dumps({"resources": [{"name": "mock/gpu", "mock": {"count": 4}, "expect": 4}]}),
    "run/cdi/example.com-fuse_tool.json": json.dumps(
        {
            "cdiVersion": "0.6.0",
            "kind": "example.com/fuse",
            "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/fuse"}]}}],
            "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/usr/bin/hook"}]},
        }
    ),
}
NODES = {"dev/nvidiactl": (195, 255), "dev/nvidia0": (195, 0), "dev/nvidia-uvm": (511, 0)}
PIPES = ("dev/fuse", "dev/null")  # which any user may make, and CDI accepts as device nodes
DIRECTORIES = ("var/lib/kubelet/plugins_registry", "var/lib/kubelet/pods", "var/lib/plugwright", "etc/cdi")


class Patient:
    def __init__(self, root: Path, kubelet: ObservedKubelet | None = None) -> None:
        self.root, self.kubelet = root, kubelet
        self.control = root / "run/plugwright/control.sock"
        self.daemon: Running | None = None
        self.kept: list[socket.socket] = []  # closed with the patient
        self.has_devices = True  # whether this user may make device nodes

    @property
    def plugins(self) -> Path:
        return self.root / "var/lib/kubelet/device-plugins"

    def write(self, name: str, content: str | object) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def make_device(self, name: str, numbers: tuple[int, int]) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*numbers))

    def populate(self) -> None:
        for directory in DIRECTORIES:
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        (self.root / "run").mkdir()
        (self.root / "var/run").symlink_to("/run")  # absolute: it must not lead out of the root
        for name, content in FILES.items():
            self.write(name, content)
        (self.root / "proc/70/fd").mkdir()
        (self.root / "usr/bin/hook").chmod(0o755)
        for device in PIPES:
            (self.root / device).parent.mkdir(exist_ok=True)
            os.mkfifo(self.root / device)
        try:
            for name, numbers in NODES.items():
                self.make_device(name, numbers)
        except PermissionError:
            self.has_devices = False
            self.remove_gpu()

    def remove_gpu(self) -> None:
        """For users that may not make device nodes: a machine without GPUs."""
        self.write(f"sys/bus/pci/devices/{GPU}/vendor", "0x8086\n")

    @asynccontextmanager
    async def served(self, *flags: object, until: str = "registered") -> AsyncIterator[None]:
        """With a daemon that has logged this."""
        command = python(
            *("-m", "plugwright", "run", "-c", self.root / "etc/plugwright.yaml"),
            *("--kubelet-dir", self.root / "var/lib/kubelet", "--state-dir", self.root / "var/lib/plugwright"),
            *("--control-socket", self.control, *flags),
        )
        async with running(command) as daemon:
            self.daemon = daemon
            await daemon.err.until(until)
            yield

    @asynccontextmanager
    async def served_here(self) -> AsyncIterator[Daemon]:
        """With a daemon in this process."""
        settings = Settings(
            kubelet_dir=self.root / "var/lib/kubelet",
            state_dir=self.root / "var/lib/plugwright",
            control_socket=self.control,
            timeouts=Timeouts(holders=0.05),
        )
        async with serving(Mock("mock/gpu", MockOptions(count=4)), settings=settings) as daemon:
            yield daemon

    async def until(self, condition: Callable[[Any], object]) -> None:
        """Waits until the daemon's report fulfils it."""
        async with asyncio.timeout(60), aclosing(self._reports()) as reports:
            async for report in reports:
                if condition(report):
                    return

    async def settled(self) -> None:
        await self.until(lambda report: report["daemon"]["ready"] and report["holdings"]["complete"])

    async def _reports(self) -> AsyncGenerator[Any, None]:
        reader, writer = await asyncio.open_unix_connection(self.control, limit=2**22)
        try:
            writer.write(b'{"do": "watch reports"}\n')
            while line := await reader.readline():
                yield json.loads(line)["ok"]
        finally:
            writer.close()
            await writer.wait_closed()

    def ask(self, **request: object) -> Any:
        return json_lines.ask(self.control, request)

    async def examine(self, **changes: Any) -> DoctorReport:
        target: dict[str, Any] = {
            "root": self.root,
            "kubelet": KubeletPaths(),
            "rollout_limit": 0.0,
            "plugin_limit": 0.5,
            **changes,
        }
        return await asyncio.to_thread(diagnose, DoctorTarget(**target))


def findings(report: DoctorReport) -> list[DoctorCheck]:
    return [check for check in report.checks if check.state == "finding"]


def check_only(report: DoctorReport, name: str, seen: str, fix: str) -> None:
    found = findings(report)
    assert [check.name for check in found] == [name], found
    assert seen in found[0].found
    assert fix in found[0].fix
    assert found[0].why
    assert report.result == "findings"


@asynccontextmanager
async def patient(root: Path) -> AsyncIterator[Patient]:
    """A healthy machine with a kubelet, without a daemon yet."""
    made = Patient(root)
    made.populate()
    async with observed_kubelet(root / "var/lib/kubelet") as kubelet:
        made.kubelet = kubelet
        try:
            yield made
        finally:
            for kept in made.kept:
                kept.close()
