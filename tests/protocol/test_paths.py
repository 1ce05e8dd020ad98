"""The kubelet's directories: given, from the environment, or the default, in this order."""

from pathlib import Path

import pytest

from plugwright.errors import ConfigError, PathTooLong
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.transport import Connection
from plugwright.system import sockets


def test_the_default_root_is_var_lib_kubelet() -> None:
    paths = KubeletPaths.from_environment({})
    assert paths == KubeletPaths()
    assert str(paths.kubelet_socket) == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert str(paths.checkpoint) == "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    assert str(paths.plugins_registry) == "/var/lib/kubelet/plugins_registry"
    assert str(paths.pod_resources_socket) == "/var/lib/kubelet/pod-resources/kubelet.sock"


def test_all_paths_are_below_the_given_root() -> None:
    paths = KubeletPaths.under("/k")
    assert (paths.root, paths.device_plugins) == (Path("/k"), Path("/k/device-plugins"))


def test_the_device_plugins_directory_can_stay_when_the_root_moves() -> None:
    paths = KubeletPaths.under("/k", "/var/lib/kubelet/device-plugins")
    assert str(paths.kubelet_socket) == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert str(paths.pod_resources_socket) == "/k/pod-resources/kubelet.sock"


def test_the_environment_sets_paths_that_are_not_given() -> None:
    environment = {"PLUGWRIGHT_KUBELET_DIR": "/e", "PLUGWRIGHT_DEVICE_PLUGINS_DIR": "/d"}
    assert KubeletPaths.from_environment(environment) == KubeletPaths(Path("/e"), Path("/d"))
    assert KubeletPaths.from_environment(environment, "/k", "/p") == KubeletPaths(Path("/k"), Path("/p"))
    assert KubeletPaths.from_environment({"PLUGWRIGHT_KUBELET_DIR": ""}) == KubeletPaths()


@pytest.mark.parametrize("path", ["kubelet", "./kubelet", "../kubelet"])
def test_a_relative_directory_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="kubelet directory must be an absolute path, got"):
        KubeletPaths.under(path)
    with pytest.raises(ConfigError, match="kubelet directory must be an absolute path, got"):
        KubeletPaths.under("/k", path)
    with pytest.raises(ConfigError, match="kubelet directory must be an absolute path, got"):
        KubeletPaths.from_environment({"PLUGWRIGHT_KUBELET_DIR": path})


def _of_length(directory: Path, length: int) -> Path:
    return directory / ("s" * (length - len(str(directory)) - 1))


def test_the_longest_path_that_the_kernel_allows_is_accepted(root: Path) -> None:
    path = _of_length(root, sockets.PATH_LIMIT)
    assert len(str(path)) == sockets.PATH_LIMIT
    sockets.listen(sockets.check_path(path)).close()


def test_a_path_one_byte_longer_is_refused_with_its_length(root: Path) -> None:
    path = _of_length(root, sockets.PATH_LIMIT + 1)
    with pytest.raises(
        PathTooLong, match=f"{root} is too deep for a socket: .* its path has 108, the kernel allows 107"
    ):
        sockets.listen(path)
    with pytest.raises(PathTooLong):
        Connection(path)
    assert not path.exists()


def test_a_path_is_measured_in_bytes_not_in_letters() -> None:
    with pytest.raises(PathTooLong, match="its path has 109, the kernel allows 107"):
        sockets.check_path(Path("/" + "ü" * 54))
    with pytest.raises(PathTooLong, match="its path has 108, the kernel allows 107"):
        sockets.check_path(Path("/" + "\udcff" * 107))  # 107 bytes that are no UTF-8
