"""smarter-device-manager's patterns become a resource for each node."""

import pytest
from tests.importers.peers import dangerous, notes, refused, resources, source

from plugwright.importers.smarter import recognises, translate

NAMES = ("snd", "snd/pcmC0D0p", "vcsm-cma", "vcsm", "video0", "v4l/by-id/video0", "odd.", "mem")


def match(pattern: str, count: int = 2) -> str:
    return f"- devicematch: '{pattern}'\n  nummaxdevices: {count}\n"


def test_a_name_is_a_resource_with_so_many_units() -> None:
    assert resources(translate, source(match("^snd$"))) == {
        "smarter-devices/snd": {"paths": [{"path": "/dev/snd", "type": "device"}], "count": 2, "ids": "index"}
    }


def test_slashes_and_dots_become_underscores_in_names_alone() -> None:
    made = resources(translate, source(match(r"^snd/pcm\.0$")))
    assert made["smarter-devices/snd_pcm_0"]["paths"] == [{"path": "/dev/snd/pcm.0", "type": "device"}]


def test_endless_numbers_are_written_out_in_their_order() -> None:
    given = source(match("^ttyUSB[0-9]*$"))
    assert list(resources(translate, given)) == [f"smarter-devices/ttyUSB{number}" for number in range(16)]
    assert notes(translate, given) == ["1: [0].devicematch: '^ttyUSB[0-9]*$' is written out for the numbers 0 to 15"]


def test_very_many_names_are_said() -> None:
    text = "".join(match(f"^{name}[0-9]*$") for name in ("ttyS", "ttyUSB", "video"))
    assert any(note.startswith("1: 48 resources, most of which") for note in notes(translate, source(text)))
    assert len(notes(translate, source(text, names=("video0",)))) == 0


def test_in_a_directory_the_names_are_those_that_are_there() -> None:
    given = source(match("vcsm.*") + match("video0$") + match("^odd"), names=NAMES)
    assert sorted(resources(translate, given)) == [
        "smarter-devices/v4l_by-id_video0",
        "smarter-devices/vcsm",
        "smarter-devices/vcsm-cma",
        "smarter-devices/video0",
    ]
    [note] = notes(translate, given)
    assert note.startswith("5: [2].devicematch: 'smarter-devices/odd_' is not a resource name: ")
    assert note.endswith("; left out")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (match("^vcsm.*$"), "stands for too many names to write out"),
        (match("net/tun"), "has no ^ and $"),
        (match("nvidia-gpu"), "the GPUs of a Jetson are not among our devices"),
        (match("^snd$", 0), "nummaxdevices is 0, so no pod ever gets one"),
        (match("^snd$") + match("^snd$"), "smarter-devices/snd is there already"),
        (match("^mem$"), "/dev/mem is the memory of the node, --dangerous takes it over; left out"),
        ("- {devicematch: ^snd$, nummaxdevices: 1, extra: 2}\n", "unknown key 'extra'"),
    ],
)
def test_what_is_different_is_noted(text: str, what: str) -> None:
    assert what in notes(translate, source(text))[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- nummaxdevices: 1\n", "file:1: [0]: devicematch is missing"),
        ("devicematch: a\n", "file:1: a list is needed here, not a mapping"),
        (match("a").replace("2", "many"), "file:2: [0].nummaxdevices: a whole number is needed here, not 'many'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, what: str) -> None:
    assert refused(translate, source(text)) == what


def test_a_pattern_that_is_none_is_refused_where_it_is_looked_up() -> None:
    assert "[0].devicematch: not a regular expression: " in refused(translate, source(match("a("), names=NAMES))


def test_what_rules_the_node_is_taken_over_if_that_is_wanted() -> None:
    made = resources(translate, dangerous(source(match("^mem$"))))
    assert made["smarter-devices/mem"]["dangerous"] is True


def test_no_name_leads_out_of_dev() -> None:
    given = source(match(r"^a/\.\./b$"))
    assert resources(translate, given) == {}
    assert "'a/../b' is no path of a device" in notes(translate, given)[0]


def test_another_domain_may_be_given() -> None:
    assert list(resources(translate, source(match("^snd$"), domain="me.io"))) == ["me.io/snd"]


def test_its_files_are_known() -> None:
    assert recognises(source(match("a")))
    assert not recognises(source("devices: []\n"))
    assert not recognises(source("- a\n- {b: c}\n"))
