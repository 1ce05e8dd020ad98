"""The root directory: claim, content and cleaning; numbers in comments are those of the facts."""

import os
import socket
import stat
from pathlib import Path

import pytest
from tests.kubelet.actors import TAPE, ScriptedPlugin, quick_settings, registered, until_state

from plugwright.errors import ConfigError, KubeletError, PathTooLong
from plugwright.kubelet import Kubelet
from plugwright.kubelet.root_dir import claim, clean
from plugwright.protocol.paths import KubeletPaths


@pytest.fixture
def paths(root: Path) -> KubeletPaths:
    paths = KubeletPaths.from_environment({}, root)
    paths.device_plugins.mkdir()
    return paths


def make_socket(path: Path) -> None:
    """A socket that an ended process left behind."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_start_removes_every_socket_and_nothing_else(paths: KubeletPaths) -> None:  # 1.12 to 1.16
    here = paths.device_plugins
    elsewhere = paths.root / "elsewhere.sock"
    for path in (elsewhere, paths.kubelet_socket, here / "plugin.sock"):
        make_socket(path)
    (here / "link.sock").symlink_to(elsewhere)
    (here / "dangling.sock").symlink_to(here / "nothing")
    for name in ("regular.sock", "DEPRECATION", ".hidden", ".1234", paths.checkpoint.name):
        (here / name).touch()
    (here / "folder").mkdir()
    make_socket(here / "folder" / "deep.sock")
    assert clean(paths, only_sockets=True, writes_deprecation=False) == ["kubelet.sock", "link.sock", "plugin.sock"]
    kept = {"dangling.sock", "regular.sock", "DEPRECATION", ".hidden", ".1234", paths.checkpoint.name, "folder"}
    assert names(here) == kept
    assert names(here / "folder") == {"deep.sock"}
    assert elsewhere.is_socket()


def test_start_of_older_kubelets_removes_every_file_but_the_checkpoint(paths: KubeletPaths) -> None:  # 1.13, 1.18
    here = paths.device_plugins
    for name in ("regular", "DEPRECATION", ".hidden", paths.checkpoint.name):
        (here / name).touch()
    (here / "folder").mkdir()
    (here / "folder" / "file").touch()
    (here / "to-folder").symlink_to(here / "folder")
    clean(paths, only_sockets=False, writes_deprecation=False)
    assert names(here) == {paths.checkpoint.name, "folder", "to-folder"}
    assert names(here / "folder") == {"file"}


@pytest.mark.parametrize(
    ("version", "left"),
    [
        ("legacy", {"DEPRECATION"}),  # created again by kubelets up to 1.24
        ("1.30", set()),
        ("1.31.0", {"DEPRECATION", "regular"}),
        ("1.32", set()),
        ("1.33", {"DEPRECATION", "regular"}),
        ("1.36", {"DEPRECATION", "regular"}),
    ],
)
async def test_directory_after_a_start_has_the_files_that_are_not_sockets(
    root: Path, version: str, left: set[str]
) -> None:  # 1.18, 1.19
    async with Kubelet(root, quick_settings(version=version)) as kubelet:
        for name in ("DEPRECATION", "regular", "plugin.sock"):
            (kubelet.paths.device_plugins / name).unlink(missing_ok=True)
        for name in ("DEPRECATION", "regular"):
            (kubelet.paths.device_plugins / name).touch()
        make_socket(kubelet.paths.device_plugins / "plugin.sock")
        await kubelet.restart()
        assert names(kubelet.paths.device_plugins) == left | {"kubelet.sock"}


async def test_deprecation_file_is_not_created(node: Kubelet) -> None:  # 1.19
    assert names(node.paths.device_plugins) == {"kubelet.sock"}


async def test_start_removes_the_socket_of_a_running_plugin(node: Kubelet) -> None:  # 1.16
    async with registered(node, ScriptedPlugin("a"), "plugin.sock"):
        await node.allocatable(TAPE, 1)
        await node.restart()
        assert not (node.paths.device_plugins / "plugin.sock").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove everything")
async def test_socket_that_cannot_be_removed_aborts_the_start(root: Path) -> None:  # 1.17
    async with Kubelet(root, quick_settings()) as kubelet:
        await kubelet.stop()
        kubelet.paths.device_plugins.chmod(0o555)
        with pytest.raises(ConfigError):
            await kubelet.start()
        kubelet.paths.device_plugins.chmod(0o755)


async def test_directory_that_cannot_be_created_aborts_the_start(root: Path) -> None:  # 1.6
    kubelet = Kubelet(root, quick_settings())
    claim(kubelet.paths)
    kubelet.paths.device_plugins.touch()
    with pytest.raises(ConfigError, match=r"cannot use .*device-plugins: File exists"):
        await kubelet.start()
    with pytest.raises(KubeletError, match="not running"):
        kubelet.node()


async def test_files_have_the_kubelets_paths(node: Kubelet) -> None:  # 0.1 to 0.4
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        root = node.paths.root
        assert (root / "device-plugins" / "kubelet.sock").is_socket()
        assert (root / "device-plugins" / "kubelet_internal_checkpoint").is_file()
        assert (root / "pod-resources" / "kubelet.sock").is_socket()
        assert (root / "plugins_registry").is_dir()


async def test_nothing_listens_before_the_start(root: Path) -> None:  # 1.1
    Kubelet(root / "new", quick_settings())
    assert not (root / "new").exists()


async def test_modes_are_what_the_umask_leaves(node: Kubelet) -> None:  # 1.3, 1.8
    assert mode(node.paths.device_plugins) == 0o755 & ~umask()
    assert mode(node.paths.kubelet_socket) == 0o777 & ~umask()


async def test_the_checkpoint_is_read_before_the_directory_is_cleaned(root: Path) -> None:  # 1.5, 1.6
    kubelet = Kubelet(root, quick_settings())
    claim(kubelet.paths)
    kubelet.paths.device_plugins.mkdir()
    kubelet.paths.checkpoint.write_text("not a checkpoint")
    make_socket(kubelet.paths.device_plugins / "old.sock")
    async with kubelet:
        changes = await until_state(kubelet, "started")
        assert [(state.kind, state.text) for state in changes[1:]] == [("started", "removed old.sock")]
        assert changes[0].kind == "checkpoint"
        assert kubelet.node() == {}


async def test_a_kubelet_that_ends_leaves_its_socket_and_the_next_makes_a_new_one(node: Kubelet) -> None:  # 1.10
    await node.stop()
    old = node.paths.kubelet_socket.stat()
    await node.start()
    new = node.paths.kubelet_socket.stat()
    assert (new.st_ino, new.st_ctime_ns) != (old.st_ino, old.st_ctime_ns)


async def test_start_of_a_running_kubelet_is_refused(node: Kubelet) -> None:
    with pytest.raises(KubeletError, match="already running"):
        await node.start()


@pytest.mark.parametrize(
    "directory", ["/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/../lib/kubelet"]
)
def test_a_real_kubelets_directory_is_refused(directory: str) -> None:
    with pytest.raises(ConfigError, match="belongs to a real kubelet"):
        claim(KubeletPaths.from_environment({}, directory))


def test_a_directory_with_other_files_is_refused_and_left_alone(root: Path) -> None:
    (root / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"contains files that no emulated kubelet wrote, such as thesis\.txt"):
        claim(KubeletPaths.from_environment({}, root))
    assert names(root) == {"thesis.txt"}


def test_a_directory_of_an_emulated_kubelet_is_taken_again(root: Path) -> None:
    paths = KubeletPaths.from_environment({}, root / "new")
    claim(paths)
    (paths.root / "left-over").touch()
    claim(paths)


async def test_two_kubelets_do_not_share_a_directory(node: Kubelet) -> None:
    with pytest.raises(ConfigError, match="a kubelet is already serving"):
        async with Kubelet(node.paths.root):
            pass


def test_file_as_root_is_refused(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(ConfigError, match="cannot use"):
        claim(KubeletPaths.from_environment({}, root / "file"))


def test_a_directory_too_deep_for_sockets_is_refused_before_it_is_made(root: Path) -> None:
    deep = root / ("d" * 100)
    with pytest.raises(PathTooLong):
        claim(KubeletPaths.from_environment({}, deep))
    assert not deep.exists()
