"""The kubelet's files stay with the test, however deep its directory is."""

from pathlib import Path
from tempfile import TemporaryDirectory

from plugwright.system import sockets
from plugwright.testing.harness import kubelet_root


def test_a_short_directory_is_used_as_it_is() -> None:
    with TemporaryDirectory(dir="/tmp") as short, kubelet_root(Path(short)) as place:
        assert place == Path(short, "kubelet")


def test_a_deep_directory_is_reached_through_a_link_that_goes_away(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory"] * 12)
    with kubelet_root(deep) as place:
        assert len(str(place)) < sockets.PATH_LIMIT // 2
        (place / "checkpoint").touch()
    assert [each.name for each in (deep / "kubelet").iterdir()] == ["checkpoint"]
    assert not place.parent.exists()


def test_the_same_directory_is_the_same_node(tmp_path: Path) -> None:
    for _ in range(2):
        with kubelet_root(tmp_path) as place:
            place.mkdir(exist_ok=True)
            (place / "seen").mkdir(exist_ok=True)
    assert (tmp_path / "kubelet" / "seen").is_dir()
