"""Cordons are kept on disk before anyone is told of them, and a file that cannot be read is never written over."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from plugwright import ConfigError, Device
from plugwright.sdk.cordons import Cordon, CordonRule, Cordons

BROKEN = {
    "nothing": b"",
    "half of it": b'{"a/b": {"x": "wh',
    "a list": b"[]",
    "a list of ids": b'{"a/b": ["x"]}',
    "null": b"null",
    "a number": b"7",
    "no text": b"\xff\xfe\x00",
    "deeply nested": b"[" * 100_000,
}
UNHURRIED = trying(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cordons.json"


def loaded(path: Path) -> Cordons:
    cordons = Cordons(path)
    cordons.load()
    return cordons


def reasons(cordons: Cordons, resource: str) -> dict[str, str]:
    return {device_id: cordon.reason for device_id, cordon in cordons.of(resource).items()}


def test_a_cordon_is_there_after_a_restart(path: Path) -> None:
    Cordons(path).add("a/b", "x", Cordon("why"))
    assert reasons(loaded(path), "a/b") == {"x": "why"}
    assert reasons(loaded(path), "a/c") == {}


def test_a_cordon_that_was_removed_stays_removed(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("why"))
    cordons.add("a/b", "y", Cordon("why not"))
    cordons.remove("a/b", "x")
    assert reasons(cordons, "a/b") == reasons(loaded(path), "a/b") == {"y": "why not"}
    cordons.remove("a/b", "y")
    assert json.loads(path.read_bytes()) == {"format": {"version": 2, "details": {}}}


def test_a_cordon_that_another_daemon_has_made_meanwhile_is_kept(path: Path) -> None:
    cordons = loaded(path)
    Cordons(path).add("a/b", "y", Cordon("fan"))
    cordons.add("a/b", "x", Cordon("why"))
    assert reasons(cordons, "a/b") == reasons(loaded(path), "a/b") == {"x": "why", "y": "fan"}


def test_the_removal_of_the_file_ends_no_cordon(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("why"))
    path.unlink()
    cordons.add("a/b", "y", Cordon("fan"))
    assert reasons(cordons, "a/b") == reasons(loaded(path), "a/b") == {"x": "why", "y": "fan"}


def test_a_file_that_is_damaged_while_the_daemon_runs_is_kept(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("why"))
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"cannot read the cordons in .*; nothing was changed"):
        cordons.remove("a/b", "x")
    assert reasons(cordons, "a/b") == {"x": "why"}
    assert path.read_bytes() == b"{"


def test_a_second_cordon_has_the_last_word(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("why"))
    cordons.add("a/b", "x", Cordon("another reason"))
    assert reasons(loaded(path), "a/b") == {"x": "another reason"}


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    Cordons(path).add("a/b", "x", Cordon("why"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["cordons.json"]


def test_cordons_without_a_directory_last_as_long_as_the_process() -> None:
    cordons = Cordons(None)
    cordons.add("a/b", "x", Cordon("why"))
    assert reasons(cordons, "a/b") == {"x": "why"}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_logged_once_and_kept(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    cordons = loaded(path)
    cordons.load()
    assert cordons.unreadable.startswith(f"cannot read the cordons in {path}: ")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "cordons not readable")
    ]
    with pytest.raises(ConfigError, match=r"cannot read the cordons in .*; nothing was changed"):
        cordons.add("a/b", "x", Cordon("why"))
    assert path.read_bytes() == content
    path.write_text('{"a/b": {"y": "mended"}}')
    cordons.add("a/b", "x", Cordon("why"))
    assert cordons.unreadable == ""
    assert reasons(loaded(path), "a/b") == {"x": "why", "y": "mended"}


def test_a_reason_that_is_no_text_is_still_a_cordon(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"a/b": {"x": 7, "y": None, "z": "fan\u0000\ud800", "": "no device has this id"}}))
    assert reasons(loaded(path), "a/b") == {"x": "7", "y": "None", "z": "fan\\x00\\ud800"}


def test_a_cordon_that_cannot_be_written_is_not_made(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("why"))
    path.unlink()
    path.mkdir()  # nothing can be renamed to it
    with pytest.raises(ConfigError, match=rf"cannot write the cordons to {path}: .*; nothing was changed"):
        cordons.add("a/b", "y", Cordon("why"))
    with pytest.raises(ConfigError, match="nothing was changed"):
        cordons.remove("a/b", "x")
    assert reasons(cordons, "a/b") == {"x": "why"}
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    cordons = loaded(tmp_path / "state" / "cordons.json")
    tmp_path.joinpath("state").touch()
    with pytest.raises(ConfigError, match=rf"cannot write the cordons to {tmp_path}/state/cordons\.json"):
        cordons.add("a/b", "x", Cordon("why"))


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
            cordons.add(resource, device_id, Cordon(reason))
            expected[resource, device_id] = reason
        else:
            cordons.remove(resource, device_id)
            expected.pop((resource, device_id), None)
    for resource in {resource for _, resource, _, _ in changes}:
        wanted = {device_id: why for (of, device_id), why in expected.items() if of == resource}
        assert reasons(cordons, resource) == reasons(loaded(path), resource) == wanted


def test_what_a_killed_writer_left_beside_the_cordons_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".plugwright-123").write_text("half")
    loaded(tmp_path / "cordons.json")
    assert list(tmp_path.iterdir()) == []


def test_who_when_and_until_when_are_kept(path: Path) -> None:
    cordon = Cordon("fan", by="root (uid 0, pid 7)", since=1_700_000_000.5, until=1_700_003_600.0)
    Cordons(path).add("a/b", "x", cordon)
    assert loaded(path).of("a/b") == {"x": cordon}


def test_a_daemon_from_before_finds_resource_device_and_reason_in_the_file(path: Path) -> None:
    Cordons(path).add("a/b", "x", Cordon("fan", by="root", since=1.0, until=9.0))
    content = json.loads(path.read_bytes())
    assert all(isinstance(reasons, dict) for reasons in content.values())  # what it checks
    assert content["a/b"] == {"x": "fan"}
    assert content["format"]["version"] == 2


def test_what_a_daemon_from_before_has_written_anew_is_read_without_an_end(path: Path) -> None:
    Cordons(path).add("a/b", "x", Cordon("fan", by="root", since=1.0, until=9.0))
    content = json.loads(path.read_bytes())
    before = {key: {name: str(text) for name, text in reasons.items()} for key, reasons in content.items()}
    path.write_text(json.dumps(before))
    assert loaded(path).all == {"a/b": {"x": Cordon("fan")}}


def test_a_file_of_a_newer_version_is_named_and_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    content = json.dumps({"format": {"version": 3, "cordons": ["in a way of its own"]}})
    path.write_text(content)
    cordons = loaded(path)
    newer = "a newer plugwright has written it, in format 3; this one reads formats up to 2"
    assert cordons.unreadable == f"cannot read the cordons in {path}: {newer}"
    with pytest.raises(ConfigError, match=r"in format 3.*nothing was changed"):
        cordons.add("a/b", "x", Cordon("why"))
    assert path.read_text() == content


@pytest.mark.parametrize("until", ["soon", -1, 1e300, None, []])
def test_an_end_that_is_no_time_is_none(path: Path, until: object) -> None:
    path.parent.mkdir()
    details = {"a/b": {"x": {"by": 7, "since": "then", "until": until}}}
    path.write_text(json.dumps({"a/b": {"x": "fan"}, "format": {"version": 2, "details": details}}))
    [cordon] = loaded(path).of("a/b").values()
    assert (cordon.by, cordon.since, cordon.until > 1e12) == ("7", 0.0, True)


def test_cordons_that_have_ended_leave_the_file(path: Path) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("fan", until=100.0))
    cordons.add("a/b", "y", Cordon("fan", until=101.0))
    assert cordons.remove_ended(99.9) == []
    assert cordons.remove_ended(100.0) == [("a/b", "x", Cordon("fan", until=100.0))]
    assert reasons(loaded(path), "a/b") == {"y": "fan"}


def test_a_cordon_ends_though_the_disk_is_full(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cordons = Cordons(path)
    cordons.add("a/b", "x", Cordon("fan", until=100.0))
    path.unlink()
    path.mkdir()  # nothing can be renamed to it
    assert len(cordons.remove_ended(200.0)) == 1
    assert cordons.all == {}
    assert [record.getMessage() for record in caplog.records] == ["expired cordons are still in the file"]


RULES = {
    "every device": (CordonRule("a/*", "x"), ["st0", "st1", "st10"]),
    "one id": (CordonRule("a/b", "x", ids=("st1",)), ["st1"]),
    "some ids": (CordonRule("a/b", "x", ids=("st1*", "zz")), ["st1", "st10"]),
    "an attribute": (CordonRule("a/b", "x", attributes={"model": ("*lto-9*",)}), ["st1"]),
    "a number": (CordonRule("a/b", "x", attributes={"index": ("0", "10")}), ["st0", "st10"]),
    "id and attribute": (CordonRule("a/b", "x", ids=("st1*",), attributes={"index": ("0", "10")}), ["st10"]),
    "an attribute that none has": (CordonRule("a/b", "x", attributes={"colour": ("*",)}), []),
}


@pytest.mark.parametrize(("rule", "expected"), RULES.values(), ids=RULES)
def test_a_rule_matches_by_id_and_attributes(rule: CordonRule, expected: list[str]) -> None:
    models = {0: "LTO-8", 1: "Acme LTO-9 HH", 10: "LTO-7"}
    devices = [Device(f"st{index}", attributes={"index": index, "model": models[index]}) for index in models]
    assert [device.id for device in devices if rule.matches(device)] == expected
    assert rule.is_for("a/b")
    assert not rule.is_for("b/a")
