"""Cordons are kept on disk before anyone is told of them, and a broken file costs no more than what it held."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from plugwright import ConfigError
from plugwright.sdk.cordons import Cordons

BROKEN = {
    "nothing": b"",
    "half of it": b'{"a/b": {"x": "wh',
    "a list": b"[]",
    "a list of ids": b'{"a/b": ["x"]}',
    "null": b"null",
    "a number": b"7",
    "no text": b"\xff\xfe\x00",
}
UNHURRIED = trying(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cordons.json"


def loaded(path: Path) -> Cordons:
    cordons = Cordons(path)
    cordons.load()
    return cordons


def test_a_cordon_is_there_after_a_restart(path: Path) -> None:
    Cordons(path).add("a/b", "x", "why")
    assert loaded(path).of("a/b") == {"x": "why"}
    assert loaded(path).of("a/c") == {}


def test_a_cordon_that_was_removed_stays_removed(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", "why")
    cordons.add("a/b", "y", "why not")
    cordons.remove("a/b", "x")
    assert cordons.of("a/b") == loaded(path).of("a/b") == {"y": "why not"}
    cordons.remove("a/b", "y")
    assert json.loads(path.read_bytes()) == {}


def test_a_second_cordon_has_the_last_word(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", "why")
    cordons.add("a/b", "x", "another reason")
    assert loaded(path).of("a/b") == {"x": "another reason"}


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    Cordons(path).add("a/b", "x", "why")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["cordons.json"]


def test_cordons_without_a_directory_last_as_long_as_the_process() -> None:
    cordons = Cordons(None)
    cordons.add("a/b", "x", "why")
    assert cordons.of("a/b") == {"x": "why"}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_renamed_and_logged(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    cordons = loaded(path)
    assert cordons.of("a/b") == {}
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "cordons not readable, file renamed")
    ]
    cordons.add("a/b", "x", "why")
    assert path.with_name("cordons.json.unreadable-1").read_bytes() == content
    assert loaded(path).of("a/b") == {"x": "why"}


def test_a_deeply_nested_file_is_renamed(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"[" * 100_000)
    assert loaded(path).of("a/b") == {}


def test_a_cordon_that_cannot_be_written_is_not_made(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", "why")
    path.unlink()
    path.mkdir()  # nothing can be renamed to it
    with pytest.raises(ConfigError, match=rf"cannot write the cordons to {path}: .*; nothing was changed"):
        cordons.add("a/b", "y", "why")
    with pytest.raises(ConfigError, match="nothing was changed"):
        cordons.remove("a/b", "x")
    assert cordons.of("a/b") == {"x": "why"}
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    cordons = loaded(tmp_path / "state" / "cordons.json")
    tmp_path.joinpath("state").touch()
    with pytest.raises(ConfigError, match=rf"cannot write the cordons to {tmp_path}/state/cordons\.json"):
        cordons.add("a/b", "x", "why")


_NAMES = st.text("abc", min_size=1, max_size=3)


@UNHURRIED
@given(changes=st.lists(st.tuples(st.booleans(), _NAMES, _NAMES, _NAMES), max_size=8))
def test_the_file_holds_the_cordons(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[bool, str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("state") / "cordons.json"
    cordons, expected = Cordons(path), dict[tuple[str, str], str]()
    for add, resource, device_id, reason in changes:
        if add:
            cordons.add(resource, device_id, reason)
            expected[resource, device_id] = reason
        else:
            cordons.remove(resource, device_id)
            expected.pop((resource, device_id), None)
    for resource in {resource for _, resource, _, _ in changes}:
        wanted = {device_id: why for (of, device_id), why in expected.items() if of == resource}
        assert cordons.of(resource) == loaded(path).of(resource) == wanted


def test_what_a_killed_writer_left_beside_the_cordons_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".plugwright-123").write_text("half")
    loaded(tmp_path / "cordons.json")
    assert list(tmp_path.iterdir()) == []
