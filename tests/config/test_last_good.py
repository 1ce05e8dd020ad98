"""The copy of the last good file: whose it is, who may read it, and what is done about one that cannot be used."""

import json
from pathlib import Path

import pytest

from plugwright.config import schema
from plugwright.config.last_good import LastGoodFile
from plugwright.config.reload import DaemonConfig
from plugwright.errors import ConfigError

GOOD = "resources: [{name: mock/gpu, mock: {count: 2}}]\n"
ERROR = 'plugwright.yaml:1: expected a mapping, got the string "broken"'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plugwright.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def state(tmp_path: Path, path: Path) -> Path:
    """A state directory with the copy of a good file, which has become a bad one since."""
    LastGoodFile(tmp_path / "state", path).save(schema.load(path), loaded=7.0)
    path.write_text("broken")
    return tmp_path / "state"


def stored(state: Path) -> Path:
    return state / "last-good-config.json"


def test_the_copy_is_for_root_alone_and_has_the_format_of_earlier_releases(path: Path, state: Path) -> None:
    assert stored(state).stat().st_mode & 0o777 == 0o600
    content = {"format": 1, "path": str(path), "loaded": 7.0, "content": GOOD}
    assert stored(state).read_text() == json.dumps(content, indent=2) + "\n"


def test_a_bad_file_is_replaced_by_its_copy(path: Path, state: Path) -> None:
    config = DaemonConfig(path, state)
    assert [plugin.resource for plugin in config.plugins] == ["mock/gpu"]
    assert (config.state.restored, config.state.loaded) == (True, 7.0)
    assert config.state.refused is not None
    assert config.state.refused.error == ERROR


def test_a_file_that_is_gone_is_replaced_by_its_copy(path: Path, state: Path) -> None:
    path.unlink()
    assert DaemonConfig(path, state).state.restored


def test_a_good_file_is_not_replaced(path: Path, state: Path) -> None:
    path.write_text("resources: []")
    config = DaemonConfig(path, state)
    assert (config.plugins, config.state.restored, config.state.refused) == ([], False, None)


def test_the_copy_of_another_file_is_not_used(path: Path, state: Path) -> None:
    other = path.with_name("other.yaml")
    with pytest.raises(ConfigError, match=r"^cannot read .*other\.yaml: No such file"):
        DaemonConfig(other, state)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            '{"format": 2, "anything": []}',
            "last-good-config.json: written by a later .*: format must be at most 1, got 2",
        ),
        ('{"format": 1}', "cannot read .*last-good-config.json: Object missing required field"),
        ("{", "cannot read .*last-good-config.json: Input data was truncated"),
    ],
)
def test_a_copy_that_cannot_be_used_is_named_beside_the_error_of_the_file(
    path: Path, state: Path, content: str, reason: str
) -> None:
    stored(state).write_text(content)
    with pytest.raises(ConfigError, match=f"^{ERROR}; its last good version cannot be used: .*{reason}"):
        DaemonConfig(path, state)
    assert stored(state).read_text() == content


def test_a_copy_that_this_version_refuses_is_not_used(path: Path, state: Path) -> None:
    changed = json.loads(stored(state).read_text()) | {"content": "resources: [{name: mock/gpu, tape: {}}]"}
    stored(state).write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match="unknown key 'tape'"):
        DaemonConfig(path, state)


def test_a_damaged_copy_is_set_aside_when_a_good_file_is_kept(path: Path, state: Path) -> None:
    stored(state).write_text("{")
    path.write_text(GOOD)
    LastGoodFile(state, path).save(schema.load(path), loaded=9.0)
    assert json.loads(stored(state).read_text())["loaded"] == 9.0
    assert (state / "last-good-config.json.damaged").read_text() == "{"


def test_a_version_that_is_kept_already_is_not_written_again(path: Path, state: Path) -> None:
    before = stored(state).stat().st_ino
    path.write_text(GOOD)
    LastGoodFile(state, path).save(schema.load(path), loaded=9.0)
    assert stored(state).stat().st_ino == before
    path.write_text("resources: []")
    LastGoodFile(state, path).save(schema.load(path), loaded=9.0)
    assert json.loads(stored(state).read_text())["content"] == "resources: []"


def test_a_state_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.joinpath("state").write_text("a file")
    last_good, config = LastGoodFile(tmp_path / "state", path), schema.load(path)
    last_good.save(config, loaded=7.0)
    last_good.save(config, loaded=8.0)
    assert [record.message for record in caplog.records] == ["last valid configuration not saved"]
