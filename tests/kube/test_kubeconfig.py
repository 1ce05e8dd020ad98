"""Finding and merging kubeconfig files, and selecting a context."""

import json
import os
from pathlib import Path

import pytest

from plugwright.errors import ConfigError
from plugwright.kube.kubeconfig import Cluster, User, find_files, load, select_context

ONE: dict[str, object] = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://one", "certificate-authority": "ca.crt"}}],
    "users": [{"name": "u", "user": {"token": "t", "client-key": "/abs/key", "client-certificate": ""}}],
}
TWO: dict[str, object] = {
    "current-context": "b",
    "contexts": [{"name": "b", "context": {"cluster": "c"}}, {"name": "broken", "context": {"cluster": "none"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://two"}}],
    "users": None,
}


def written(path: Path, document: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_kubeconfig_option_precedes_the_environment_and_the_home_directory(tmp_path: Path) -> None:
    option, named = written(tmp_path / "option", ONE), written(tmp_path / "named", ONE)
    default = written(tmp_path / ".kube" / "config", ONE)
    environment = {"KUBECONFIG": f"{named}:{tmp_path / 'absent'}"}
    assert find_files(option, environment, tmp_path) == [option]
    assert find_files(None, environment, tmp_path) == [named]
    assert find_files(None, {"KUBECONFIG": ""}, tmp_path) == [default]
    assert find_files(None, {}, tmp_path / "elsewhere") == []


def test_named_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no kubeconfig .*/absent"):
        find_files(tmp_path / "absent", {}, tmp_path)
    with pytest.raises(ConfigError, match="there is no kubeconfig /x, /y"):
        find_files(None, {"KUBECONFIG": "/x:/y"}, tmp_path)


def test_a_kubeconfig_without_end_is_read_up_to_the_limit() -> None:
    with pytest.raises(ConfigError, match="cannot read the kubeconfig /dev/zero: it must have at most 16777216 bytes"):
        load([Path("/dev/zero")])


def test_a_kubeconfig_can_be_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, json.dumps(ONE).encode())
    os.close(writing)
    assert load([Path(f"/dev/fd/{reading}")])["current-context"] == "a"
    os.close(reading)


def test_first_file_to_define_an_entry_wins(tmp_path: Path) -> None:
    document = load([written(tmp_path / "1", ONE), written(tmp_path / "2", TWO)])
    assert document["current-context"] == "a"
    assert select_context(document, "b").cluster == select_context(document, None).cluster


def test_paths_are_relative_to_their_file_and_empty_members_are_dropped(tmp_path: Path) -> None:
    other = {"current-context": "a", "users": [{"name": "u", "user": {"tokenFile": "../token"}}]}
    document = load([written(tmp_path / "dir" / "1", other), written(tmp_path / "2", ONE)])
    selected = select_context(document, None)
    assert selected.cluster == Cluster(server="https://one", certificate_authority=str(tmp_path / "ca.crt"))
    assert Path(selected.user.token_file).resolve() == tmp_path / "token"
    assert select_context(load([tmp_path / "2"]), None).user == User(token="t", client_key="/abs/key")


def test_context_without_a_user_has_no_credentials(tmp_path: Path) -> None:
    assert select_context(load([written(tmp_path / "2", TWO)]), None).user == User()


@pytest.mark.parametrize(
    ("context", "complaint"),
    [("z", "no context 'z', only: b, broken"), ("broken", "must name a cluster and a user that the kubeconfig has")],
)
def test_a_context_that_cannot_be_used_is_an_error(tmp_path: Path, context: str, complaint: str) -> None:
    document = load([written(tmp_path / "2", TWO)])
    with pytest.raises(ConfigError, match=complaint):
        select_context(document, context)


def test_without_a_current_context_one_must_be_chosen(tmp_path: Path) -> None:
    document = load([written(tmp_path / "1", {**ONE, "current-context": ""})])
    with pytest.raises(ConfigError, match="choose one with --context: a"):
        select_context(document, None)
    assert select_context(document, "a").name == "a"


@pytest.mark.parametrize("text", ["[]", "just text", "clusters: {a: 1}", "contexts: [1]", "a: [", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        load([path])


def test_a_plugin_with_a_directory_is_relative_to_its_file(tmp_path: Path) -> None:
    for command, found in (("./get", str(tmp_path / "get")), ("aws", "aws")):
        entry = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": None}
        document = load([written(tmp_path / "1", {**ONE, "users": [{"name": "u", "user": {"exec": entry}}]})])
        plugin = select_context(document, None).user.exec
        assert plugin is not None
        assert plugin.command == found
