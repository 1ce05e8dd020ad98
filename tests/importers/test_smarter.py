"""smarter-device-manager: its patterns become one resource per device node."""

import pytest
from tests.importers.translation import dangerous, notes, refused, resources, source

from plugwright.importers.smarter import recognises, translate

NAMES = ("snd", "snd/pcmC0D0p", "vcsm-cma", "vcsm", "video0", "v4l/by-id/video0", "odd.", "mem")


def match(pattern: str, count: int = 2) -> str:
    return f"- devicematch: '{pattern}'\n  nummaxdevices: {count}\n"


def test_name_becomes_a_resource_with_its_units() -> None:
    assert resources(translate, source(match("^snd$"))) == {
        "smarter-devices/snd": {"paths": [{"path": "/dev/snd", "type": "device"}], "count": 2, "ids": "index"}
    }


def test_slashes_and_dots_become_underscores_in_names_alone() -> None:
    made = resources(translate, source(match(r"^snd/pcm\.0$")))
    assert made["smarter-devices/snd_pcm_0"]["paths"] == [{"path": "/dev/snd/pcm.0", "type": "device"}]


def test_unlimited_numbers_are_expanded_in_order() -> None:
    config = source(match("^ttyUSB[0-9]*$"))
    assert list(resources(translate, config)) == [f"smarter-devices/ttyUSB{number}" for number in range(16)]
    assert notes(translate, config) == ["1: [0].devicematch: '^ttyUSB[0-9]*$' is expanded to the numbers 0 to 15"]


def test_many_resources_are_noted() -> None:
    text = "".join(match(f"^{name}[0-9]*$") for name in ("ttyS", "ttyUSB", "video"))
    assert any(note.startswith("1: 48 resources, most of which") for note in notes(translate, source(text)))
    assert len(notes(translate, source(text, names=("video0",)))) == 0


def test_names_in_a_directory_are_matched() -> None:
    config = source(match("vcsm.*") + match("video0$") + match("^odd"), names=NAMES)
    assert sorted(resources(translate, config)) == [
        "smarter-devices/v4l_by-id_video0",
        "smarter-devices/vcsm",
        "smarter-devices/vcsm-cma",
        "smarter-devices/video0",
    ]
    [note] = notes(translate, config)
    assert note.startswith("5: [2].devicematch: 'smarter-devices/odd_' is not a resource name: ")
    assert note.endswith("; left out")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (match("^vcsm.*$"), "matches too many names to list them"),
        (match("net/tun"), "has no ^ and $"),
        (match("nvidia-gpu"), "the GPUs of a Jetson are not supported"),
        (match("^snd$", 0), "nummaxdevices is 0, so no pod ever gets one"),
        (match("^snd$") + match("^snd$"), "smarter-devices/snd exists already"),
        (match("^watchdog$"), "/dev/watchdog is the watchdog, which resets the node, --dangerous imports it; left out"),
        (match("^mem$"), "/dev/mem is the memory of the node, --dangerous imports it; left out"),
        ("- {devicematch: ^snd$, nummaxdevices: 1, extra: 2}\n", "unknown key 'extra'"),
    ],
)
def test_difference_is_noted(text: str, problem: str) -> None:
    assert problem in notes(translate, source(text))[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- nummaxdevices: 1\n", "file:1: [0]: devicematch is missing"),
        ("devicematch: a\n", "file:1: must be a list, got a mapping"),
        (match("a").replace("2", "many"), "file:2: [0].nummaxdevices: must be an integer, got 'many'"),
    ],
)
def test_error_is_refused_with_its_line(text: str, problem: str) -> None:
    assert refused(translate, source(text)) == problem


def test_invalid_expression_is_refused_with_dev() -> None:
    assert "[0].devicematch: must be a regular expression: " in refused(translate, source(match("a("), names=NAMES))


def test_dangerous_device_is_imported_on_request() -> None:
    made = resources(translate, dangerous(source(match("^mem$"))))
    assert made["smarter-devices/mem"]["dangerous"] is True


def test_name_outside_dev_is_left_out() -> None:
    config = source(match(r"^a/\.\./b$"))
    assert resources(translate, config) == {}
    assert "'a/../b' is not a valid path below /dev" in notes(translate, config)[0]


def test_another_domain_may_be_given() -> None:
    assert list(resources(translate, source(match("^snd$"), domain="me.io"))) == ["me.io/snd"]


def test_its_files_are_recognised() -> None:
    assert recognises(source(match("a")))
    assert not recognises(source("devices: []\n"))
    assert not recognises(source("- a\n- {b: c}\n"))
