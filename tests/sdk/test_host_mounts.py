from collections.abc import Mapping

import pytest

from plugwright.sdk.host_mounts import FromSettings, HostDirectory, HostMount, When, directories


def paths(mount: HostMount, settings: Mapping[str, object]) -> list[str]:
    return [directory.mount_path or directory.path for directory in directories([mount], settings)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["/default"]),
        ({"a": {"dir": ""}}, ["/default"]),
        ({"a": {"dir": "/own/"}}, ["/own"]),
        ({"a": None, "b": "/other"}, ["/other"]),
        ({"a": {"dir": "/own"}, "b": "/other"}, ["/own"]),
    ],
)
def test_the_first_setting_with_a_value_wins(settings: Mapping[str, object], expected: list[str]) -> None:
    assert paths(HostMount(path=FromSettings(("a.dir", "b"), "/default")), settings) == expected


def test_a_setting_without_a_value_and_default_mounts_nothing() -> None:
    assert paths(HostMount(path=FromSettings(("a.dir",))), {"a": {"dir": ""}}) == []


def test_a_list_mounts_a_directory_for_each_item_once() -> None:
    settings = {"paths": ["/srv/x/a", {"path": "/srv/x/b"}, {"path": "/opt/*/c"}, "/dev/c", "/sys/d/e"]}
    mount = HostMount(path=FromSettings(("paths.path",), part="before-wildcard"), unless_below=("/dev", "/sys"))
    assert paths(mount, settings) == ["/srv/x", "/opt"]


def test_unless_below_compares_whole_names() -> None:
    mount = HostMount(path=FromSettings(("a",)), unless_below=("/dev",))
    assert paths(mount, {"a": "/devices"}) == ["/devices"]


def test_a_mount_below_the_root_is_seen_there() -> None:
    mount = HostMount(path="/sys", below_root=True)
    assert directories([mount], {"host": {"root": "/host/"}}) == [HostDirectory("/sys", "/host/sys")]
    assert directories([mount], {"host": {"root": "/"}}) == [HostDirectory("/sys")]


def test_the_place_of_a_mount_may_be_a_setting() -> None:
    mount = HostMount(path="/usr", at=FromSettings(("root",), suffix="/usr"), mounts=True)
    assert directories([mount], {"root": "/driver"}) == [HostDirectory("/usr", "/driver/usr", mounts=True)]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (When(FromSettings(("kind",)), one_of=("b", "c")), ["/d"]),
        (When(FromSettings(("kind",)), one_of=("c",)), []),
        (When(FromSettings(("kind",)), none_of=("b",)), []),
        (When(FromSettings(("kind",)), none_of=("c",)), ["/d"]),
        (When(FromSettings(("absent",)), one_of=("",)), ["/d"]),
        (When(FromSettings(("absent",)), none_of=("",)), []),
        (When(FromSettings(("flag",)), one_of=("true",)), ["/d"]),
    ],
)
def test_a_condition_decides_by_the_values_of_a_setting(condition: When, expected: list[str]) -> None:
    assert paths(HostMount(path="/d", when=(condition,)), {"kind": ["a", "b"], "flag": True}) == expected


def test_every_condition_must_hold() -> None:
    is_a, is_b = (When(FromSettings(("kind",)), one_of=(kind,)) for kind in "ab")
    assert paths(HostMount(path="/d", when=(is_a, is_b)), {"kind": "a"}) == []
