"""Pods in YAML: from files, and from a folder whose files are added, changed and deleted."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.cluster.standalone.pod_changes import PodChanges
from plugwright.config.pod_files import PodFolder, read
from plugwright.errors import ConfigError


def pod(name: str, count: int = 1) -> str:
    """JSON, which is YAML too."""
    container = {"name": "main", "resources": {"limits": {"mock/gpu": count}}}
    return json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}})


def keys(changes: PodChanges) -> tuple[list[str], list[str]]:
    return list(changes.removed), list(changes.added)


def test_a_file_may_have_several_pods_and_empty_documents(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(f"---\n{pod('one')}\n---\n# nothing\n---\n{pod('two')}\n")
    assert [spec.key for spec in read(path).pods] == ["default/one", "default/two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\n}", "pods.yaml:2: not YAML"),
        ("kind: Deployment", "pods.yaml:1: kind must be Pod, got 'Deployment'"),
        (
            f"{pod('one')}\n---\nkind: Pod\nmetadata: {{name: two}}\n",
            "pods.yaml:3: spec.containers must have at least one container",
        ),
        ("[1, 2]", "pods.yaml:1: a pod must be an object"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert message in str(refusal.value)


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(path)


def test_pods_are_added_changed_and_removed_with_their_files(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    assert folder.scan() == PodChanges()
    (tmp_path / "a.yaml").write_text(pod("one"))
    assert keys(folder.scan()) == ([], ["default/one"])
    assert folder.scan() == PodChanges()
    (tmp_path / "a.yaml").write_text(pod("one", count=2))
    assert keys(folder.scan()) == (["default/one"], ["default/one"])
    (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
    assert folder.scan() == PodChanges()  # the same pod in another file
    (tmp_path / "b.yaml").unlink()
    assert keys(folder.scan()) == (["default/one"], [])


def test_file_that_becomes_invalid_is_reported_once_and_keeps_its_pods(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    (tmp_path / "a.yaml").write_text(pod("one"))
    folder.scan()
    (tmp_path / "a.yaml").write_text("{kind")
    bad = folder.scan()
    assert keys(bad) == ([], [])
    assert list(bad.problems) == ["a.yaml"]
    assert folder.scan() == PodChanges()


def test_first_of_two_pods_with_one_name_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pod("one"))
    (tmp_path / "b.yaml").write_text(pod("one", count=2))
    changes = PodFolder(tmp_path).scan()
    assert changes.added["default/one"].requested("mock/gpu") == 1
    assert "another file in this folder has a pod default/one" in changes.problems["b.yaml"]


def test_only_files_that_look_like_pods_are_read(tmp_path: Path) -> None:
    for name in (".hidden.yaml", "a.yaml~", "notes.txt"):
        (tmp_path / name).write_text("{kind")
    (tmp_path / "folder.yaml").mkdir()
    assert PodFolder(tmp_path).scan() == PodChanges()


def test_removed_folder_removes_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "pods"
    path.mkdir()
    (path / "a.yml").write_text(pod("one"))
    folder = PodFolder(path)
    folder.scan()
    (path / "a.yml").unlink()
    path.rmdir()
    assert keys(folder.scan()) == (["default/one"], [])


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3), max_size=6))
def test_changes_lead_from_one_scan_to_the_next(
    tmp_path_factory: pytest.TempPathFactory, contents: list[dict[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("pods")
    folder = PodFolder(path)
    there: dict[str, int] = {}
    for content in contents:
        for name in "abc":
            (path / f"{name}.json").unlink(missing_ok=True)
        for name, count in content.items():
            (path / f"{name}.json").write_text(pod(name, count))
        changes = folder.scan()
        for key in changes.removed:
            del there[key]
        for key, spec in changes.added.items():
            assert key not in there
            there[key] = spec.requested("mock/gpu")
        assert there == {f"default/{name}": count for name, count in content.items()}
