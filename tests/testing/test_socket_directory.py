"""The root of a kubelet in a test's directory, however deep that is."""

from pathlib import Path
from tempfile import TemporaryDirectory

from plugwright.system import sockets
from plugwright.testing.harness import kubelet_root


def test_short_directory_is_used_itself() -> None:
    with TemporaryDirectory(dir="/tmp") as short, kubelet_root(Path(short)) as root:
        assert root == Path(short, "kubelet")


def test_deep_directory_is_reached_through_a_temporary_link(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory"] * 12)
    with kubelet_root(deep) as root:
        assert len(str(root)) < sockets.PATH_LIMIT // 2
        (root / "checkpoint").touch()
    assert [path.name for path in (deep / "kubelet").iterdir()] == ["checkpoint"]
    assert not root.parent.exists()


def test_the_same_directory_is_the_same_node(tmp_path: Path) -> None:
    for _ in range(2):
        with kubelet_root(tmp_path) as root:
            root.mkdir(exist_ok=True)
            (root / "seen").mkdir(exist_ok=True)
    assert (tmp_path / "kubelet" / "seen").is_dir()
