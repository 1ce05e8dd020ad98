"""The hooks of CDI specs: the program that they call, and what the container of each class of GPUs gets."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.plugins.nvidia.driver_tree import VERSION, install_driver

from plugwright import ConfigError
from plugwright.plugins.nvidia import config as nvidia_config
from plugwright.plugins.nvidia import hooks, simulated_machines
from plugwright.plugins.nvidia.cdi import GpuSpecs
from plugwright.plugins.nvidia.config import (
    NvidiaCdi,
    NvidiaConfig,
    NvidiaDriver,
    NvidiaShare,
    SharingStrategy,
)
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.sdk import cdi

GPUS = simulated_machines.load("t4").gpus[:1]
INSIDE = "/usr/local/nvidia/lib64"
NEW, OLD = b"...enable-cuda-compat...disable-device-node-modification...", b"...update-ldcache..."


def config_of(root: Path, **keys: object) -> NvidiaConfig:
    """A driver of the host, whose root the daemon sees elsewhere."""
    driver = NvidiaDriver(root=str(root), host="/", dev=str(root), libraries=[INSIDE])
    return NvidiaConfig(driver=driver, **keys)  # type: ignore[arg-type]


def install_program(root: Path, name: str, content: bytes = NEW) -> None:
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin" / name).write_bytes(content)


def common_edits(root: Path, kind: str = "gpu", **keys: object) -> cdi.ContainerEdits:
    install_driver(root)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).touch()
    config = config_of(root, cdi=NvidiaCdi(dir=str(root / "cdi")), **keys)
    GpuSpecs(config, DriverFiles(config, sys=root / "sys")).write(GPUS)
    return cdi.read(root / f"cdi/k8s.device-plugin.nvidia.com-{kind}_plugwright-nvidia.json").edits


def test_nvidias_program_is_found_on_the_host(tmp_path: Path) -> None:
    assert hooks.find(config_of(tmp_path)) is None
    install_program(tmp_path, "nvidia-ctk")
    found = hooks.find(config_of(tmp_path))
    assert found is not None
    [hook] = found.links([("libcuda.so.1", "/lib/libcuda.so")])
    assert hook == cdi.Hook(
        "createContainer",
        "/usr/bin/nvidia-ctk",
        ["nvidia-ctk", "hook", "create-symlinks", "--link", "libcuda.so.1::/lib/libcuda.so"],
    )
    install_program(tmp_path, "nvidia-cdi-hook")
    assert getattr(hooks.find(config_of(tmp_path)), "path", "") == "/usr/bin/nvidia-cdi-hook"


def test_the_configuration_names_a_program_or_none(tmp_path: Path) -> None:
    install_program(tmp_path, "nvidia-cdi-hook")
    assert hooks.find(config_of(tmp_path, cdi=NvidiaCdi(hooks="none"))) is None
    named = hooks.find(config_of(tmp_path, cdi=NvidiaCdi(hooks="/opt/hook")))
    assert named == hooks.HookProgram("/opt/hook")
    with pytest.raises(ConfigError, match=r"cdi.hooks must be auto, none or an absolute path, got 'bin/hook'"):
        nvidia_config.check(config_of(tmp_path, cdi=NvidiaCdi(hooks="bin/hook")))


@pytest.mark.parametrize(
    ("mount", "usable"),
    [
        ("{0} {0} rw - ext4 /dev/sda rw", True),  # a hostPath, of the file system with the whole path
        ("/bin {0} rw - ext4 /dev/sda rw", True),  # or of one that is mounted at its parent
        ("/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/bin {0} rw - ext4 /dev/sda rw", False),
        ("/srv/bin {0} rw - ext4 /dev/sda rw", False),
        ("/ {0} rw - tmpfs tmpfs rw", False),
        ("/ / rw - overlay overlay rw", False),
    ],
)
def test_our_own_program_is_copied_to_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, usable: bool
) -> None:
    (tmp_path / "image").mkdir()
    ours, target = tmp_path / "image/plugwright-cdi-hook", tmp_path / "host/bin"
    ours.write_bytes(b"a program")
    ours.chmod(0o755)
    monkeypatch.setenv("PATH", str(ours.parent))
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 8:1 / / rw - overlay overlay rw\n2 1 8:1 " + mount.format(target) + "\n")
    config = config_of(tmp_path, cdi=NvidiaCdi(programs=str(target)))
    assert hooks.find(config, mounts) is None, "there is no ldconfig that it could call"
    (tmp_path / "sbin").mkdir()
    shutil.copy(next(filter(os.path.exists, ("/sbin/ldconfig.real", "/sbin/ldconfig"))), tmp_path / "sbin/ldconfig")
    found = hooks.find(config, mounts)
    installed = target / "plugwright-cdi-hook"
    assert found == (hooks.HookProgram(str(installed)) if usable else None)
    assert installed.exists() == usable
    if usable:
        assert (installed.read_bytes(), installed.stat().st_mode & 0o777) == (b"a program", 0o755)
    shutil.copy(sys.executable, tmp_path / "sbin/ldconfig")
    assert hooks.find(config, mounts) is None, "one that loads libraries would load the image's"


def test_our_own_program_is_found_by_a_daemon_on_the_host_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a systemd unit: its root is the host's, and not that of a container."""
    (tmp_path / "image").mkdir()
    ours, target, mounts = tmp_path / "image/plugwright-cdi-hook", tmp_path / "bin", tmp_path / "mountinfo"
    ours.write_bytes(b"a program")
    ours.chmod(0o755)
    monkeypatch.setenv("PATH", str(ours.parent))
    (tmp_path / "sbin").mkdir()
    shutil.copy(next(filter(os.path.exists, ("/sbin/ldconfig.real", "/sbin/ldconfig"))), tmp_path / "sbin/ldconfig")
    config = config_of(tmp_path, cdi=NvidiaCdi(programs=str(target)))
    for root, usable in (("8:1 / / rw - ext4 /dev/vda1 rw", True), ("8:1 / / rw - overlay overlay rw", False)):
        mounts.write_text(f"1 0 {root}\n")
        assert (hooks.find(config, mounts) is not None) == usable


def test_a_spec_with_hooks_refreshes_the_loaders_cache(tmp_path: Path) -> None:
    install_program(tmp_path, "nvidia-cdi-hook")
    edits = common_edits(tmp_path)
    assert [hook.args[1:3] for hook in edits.hooks] == [
        ("create-symlinks", "--link"),
        ("enable-cuda-compat", f"--host-driver-version={VERSION}"),
        ("update-ldcache", "--folder"),
        ("disable-device-node-modification",),
    ]
    assert edits.hooks[2].args[-1] == INSIDE
    assert f"libcuda.so.1::{INSIDE}/libcuda.so" in edits.hooks[0].args
    assert "TRITON_LIBCUDA_PATH" not in edits.env


def test_an_older_program_is_not_asked_for_what_it_does_not_have(tmp_path: Path) -> None:
    install_program(tmp_path, "nvidia-cdi-hook", OLD)
    assert [hook.args[1] for hook in common_edits(tmp_path).hooks] == ["create-symlinks", "update-ldcache"]


def test_without_a_program_the_names_are_mounts_and_triton_is_told(tmp_path: Path) -> None:
    edits = common_edits(tmp_path)
    assert edits.hooks == ()
    assert {f"{INSIDE}/libcuda.so", f"{INSIDE}/libcuda.so.1"} <= {mount.container_path for mount in edits.mounts}
    assert edits.env["TRITON_LIBCUDA_PATH"] == INSIDE


def test_no_other_libcuda_comes_before_a_limiter(tmp_path: Path) -> None:
    install_program(tmp_path, "nvidia-cdi-hook")
    shared = {"share": NvidiaShare(by=SharingStrategy.VGPU, replicas=2)}
    assert "enable-cuda-compat" not in [hook.args[1] for hook in common_edits(tmp_path, "vgpu", **shared).hooks]
    assert "enable-cuda-compat" in [hook.args[1] for hook in common_edits(tmp_path, "gpu", **shared).hooks]
