"""Paths: matches of patterns, links out of what was named, and groups."""

import os
import socket
from pathlib import Path

import pytest
from tests.plugins.generic.machines import Machine, found

from plugwright.errors import InvalidValue
from plugwright.plugins.generic.allocation import HandoutOptions, allocation_of
from plugwright.plugins.generic.groups import DeviceGroup, GroupSelector
from plugwright.plugins.generic.hardware import AllAsOne, HostPath, Unit
from plugwright.plugins.generic.paths import PathPattern, PathSelector, match
from plugwright.plugins.generic.usb import UsbFilter


def paths(*patterns: str, **wanted: object) -> PathSelector:
    return PathSelector([PathPattern(path=path, **wanted) for path in patterns])  # type: ignore[arg-type]


def only(machine: Machine, *patterns: str, **wanted: object) -> Unit:
    [unit] = machine.find(paths(*patterns, **wanted)).values()
    return unit


def test_every_match_is_a_device_in_the_order_of_its_number(machine: Machine) -> None:
    for name in ("ttyUSB10", "ttyUSB2", "ttyUSB0", "ttyS0", ".ttyUSB"):
        machine.node(name)
    units = machine.find(paths("/dev/ttyUSB*", "/dev/ttyUSB0"))
    assert list(units) == ["ttyUSB0", "ttyUSB2", "ttyUSB10"]
    assert found(units["ttyUSB2"]) == ["/dev/ttyUSB2"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("/dev/tty[S-U]*[02]", ["ttyUSB0", "ttyUSB2"]),
        ("/dev/tty[!U]*", ["ttyACM0"]),
        ("/dev/tty[^U]*", ["ttyACM0"]),
        ("/dev/ttyUSB?", ["ttyUSB0", "ttyUSB2"]),
        (r"/dev/star\*", ["star*"]),
        ("/dev/*/pcm*", ["snd/pcmC0D0c"]),
        ("/dev/none/*", []),
    ],
)
def test_patterns_are_those_of_a_shell(machine: Machine, pattern: str, names: list[str]) -> None:
    for name in ("ttyUSB0", "ttyUSB2", "ttyACM0", "star*", "starfish", "snd/pcmC0D0c"):
        machine.node(name)
    assert [unit.paths[0].path for unit in machine.find(paths(pattern)).values()] == [f"/dev/{name}" for name in names]


def test_similar_names_get_different_ids(machine: Machine) -> None:
    machine.node("a-b")
    machine.node("a/b")
    ids = list(machine.find(paths("/dev/a-b", "/dev/a/b")))
    assert len(set(ids)) == 2
    assert ids == list(machine.find(paths("/dev/a-b", "/dev/a/b")))


@pytest.mark.parametrize("path", ["dev/fuse", "/dev/../etc/shadow", "/", "/dev/a\nb", "/dev/*/.."])
def test_a_path_that_leaves_or_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidValue):
        PathPattern(path=path)


@pytest.mark.parametrize("permissions", ["rr", "x", "rwmr"])
def test_permissions_are_checked(permissions: str) -> None:
    with pytest.raises(InvalidValue):
        PathPattern(path="/dev/fuse", permissions=permissions)


def test_files_sockets_and_directories_are_mounted(machine: Machine) -> None:
    machine.write("/opt/licence")
    (machine.root / "run").mkdir()
    directory = os.open(machine.root / "run", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{directory}/s.sock")  # a socket's path is short
    os.close(directory)
    machine.node("snd/pcm")
    kinds = {
        path: only(machine, path).paths[0].mount for path in ("/opt/licence", "/run/s.sock", "/opt", "/dev/snd/pcm")
    }
    assert kinds == {"/opt/licence": True, "/run/s.sock": True, "/opt": True, "/dev/snd/pcm": False}
    assert not only(machine, "/opt/licence", type="device").paths[0].mount
    assert only(machine, "/dev/snd/pcm", type="mount", read_only=True).paths[0].read_only


@pytest.mark.parametrize(
    ("to", "inside"), [("", "/dev/ttyACM0"), ("/dev/modem", "/dev/modem"), ("/dev/modems/", "/dev/modems/ttyACM0")]
)
def test_a_path_in_the_container_may_be_another(machine: Machine, to: str, inside: str) -> None:
    machine.node("ttyACM0")
    [node] = allocation_of("example.com/modem", HandoutOptions(), [only(machine, "/dev/ttyACM*", to=to)]).nodes
    assert node.container_path == inside


def test_a_link_is_handed_out_as_it_is_while_only_root_can_change_it(machine: Machine) -> None:
    machine.node("ttyUSB0")
    machine.link("/dev/serial/by-id/usb-FTDI", "/dev/ttyUSB0")
    unit = only(machine, "/dev/serial/by-id/*")
    assert (unit.id, unit.paths[0].host_path, unit.danger) == (
        "serial-by-id-usb-FTDI",
        "/dev/serial/by-id/usb-FTDI",
        "",
    )
    (machine.root / "dev/serial/by-id").chmod(0o777)
    assert only(machine, "/dev/serial/by-id/*").paths[0].host_path == "/dev/ttyUSB0"


def test_a_link_that_leads_out_of_what_was_named_is_dangerous(machine: Machine) -> None:
    machine.node("sda")
    machine.write("/opt/devices/good")
    machine.link("/opt/devices/link", "/dev/sda")
    machine.link("/dev/innocent", "/etc/shadow")
    machine.write("/etc/shadow")
    assert {unit.id: unit.danger for unit in machine.find(paths("/opt/devices/*", "/dev/inno*")).values()} == {
        "opt-devices-good": "",
        "opt-devices-link": "/opt/devices/link is a link to /dev/sda, out of /opt/devices",
        "innocent": "/dev/innocent is a link to /etc/shadow, out of /dev",
    }


@pytest.mark.parametrize("pattern", ["/home/user/run/config", "/home/user/run/*"])
def test_a_link_that_others_can_make_leads_nowhere_new(machine: Machine, pattern: str) -> None:
    machine.write("/root/.kube/config")
    machine.write("/home/user/own/config")
    machine.link("/home/user/run", "/root/.kube")
    (machine.root / "home/user").chmod(0o777)
    assert only(machine, pattern).danger.startswith("/home/user/run/config is a link to /root/.kube/config, out of ")
    machine.link("/home/user/run", "/home/user/own")
    assert only(machine, pattern).danger != ""
    machine.remove("/home/user/run")
    machine.write("/home/user/run/config")
    assert only(machine, pattern).danger == ""
    assert only(machine, pattern).paths[0].host_path == "/home/user/run/config"


def test_a_link_that_root_made_on_the_way_is_followed(machine: Machine) -> None:
    machine.write("/run/daemon/socket")
    machine.link("/var/run", "/run")
    unit = only(machine, "/var/run/daemon/*")
    assert (unit.danger, unit.paths[0].host_path) == ("", "/var/run/daemon/socket")


@pytest.mark.parametrize("name", [b"bad\xff", b"bad\xff" + b"x" * 60, b"new\nline"])
def test_an_unprintable_name_does_not_hide_others(machine: Machine, name: bytes) -> None:
    machine.node("ttyUSB0")
    (machine.root / "dev" / os.fsdecode(name)).touch()
    assert list(machine.find(paths("/dev/*"))) == ["ttyUSB0"]


def test_an_absolute_link_stays_inside_the_root(machine: Machine, tmp_path: Path) -> None:
    tmp_path.joinpath("secret").touch()
    (machine.root / "dev").mkdir()
    (machine.root / "dev/out").symlink_to(tmp_path / "secret")
    (machine.root / "dev/up").symlink_to("../../../../../../../../../../etc/passwd")
    assert {unit.fault for unit in machine.find(paths("/dev/*")).values()} == {
        "/dev/out leads nowhere",
        "/dev/up leads nowhere",
    }


def test_links_in_a_circle_end(machine: Machine) -> None:
    machine.link("/dev/a", "/dev/b")
    machine.link("/dev/b", "/dev/a")
    assert {unit.fault for unit in machine.find(paths("/dev/*")).values()} == {
        "/dev/a leads nowhere",
        "/dev/b leads nowhere",
    }


def test_directories_where_more_matches_may_appear_are_known(machine: Machine) -> None:
    machine.node("snd/pcm")
    look = match(machine.host, "/dev/*/by-id/*")
    assert look.directories == [machine.root / "dev", machine.root / "dev/snd"]
    assert match(machine.host, "/run/none/x.sock").directories == [machine.root]


# Groups


def rows(machine: Machine, group: DeviceGroup, by_letter: bool = False) -> list[list[str]]:
    return [found(unit) for unit in GroupSelector([group], by_letter).find(machine.host)]


@pytest.fixture
def studio(machine: Machine) -> Machine:
    for name in ("video0", "video1", "video2", "snd/controlC0", "snd/controlC1", "media0"):
        machine.node(name)
    return machine


def patterns(*given: str, **last: object) -> list[str | PathPattern]:
    return [*(PathPattern(path=path) for path in given[:-1]), PathPattern(path=given[-1], **last)]  # type: ignore[arg-type]


def test_members_of_a_group_are_joined_in_order(studio: Machine) -> None:
    assert rows(studio, DeviceGroup(paths=patterns("/dev/video*", "/dev/snd/controlC*"))) == [
        ["/dev/video0", "/dev/snd/controlC0"],
        ["/dev/video1", "/dev/snd/controlC1"],
    ]


def test_a_member_may_be_a_part_of_several_devices(studio: Machine) -> None:
    assert rows(studio, DeviceGroup(paths=patterns("/dev/video*", "/dev/media0", limit=2))) == [
        ["/dev/video0", "/dev/media0"],
        ["/dev/video1", "/dev/media0"],
    ]
    assert rows(studio, DeviceGroup(paths=patterns("/dev/media0", limit=9))) == [["/dev/media0"]]


def test_an_optional_member_may_be_missing_and_a_required_one_not(studio: Machine) -> None:
    assert rows(studio, DeviceGroup(paths=patterns("/dev/media0", "/dev/none", optional=True))) == [["/dev/media0"]]
    assert rows(studio, DeviceGroup(paths=patterns("/dev/media0", "/dev/none"))) == []
    assert rows(studio, DeviceGroup(paths=patterns("/dev/none", optional=True))) == []


def test_order_is_by_number_unless_by_letter_for_another_plugin(machine: Machine) -> None:
    for name in ("video2", "video10", "mic1", "mic2"):
        machine.node(name)
    both = patterns("/dev/video*", "/dev/mic*")
    assert rows(machine, DeviceGroup(paths=both))[0] == ["/dev/video2", "/dev/mic1"]
    assert rows(machine, DeviceGroup(paths=both), by_letter=True)[0] == ["/dev/video10", "/dev/mic1"]


def test_all_can_be_one_device(studio: Machine) -> None:
    assert rows(studio, DeviceGroup(paths=patterns("/dev/video*", "/dev/media*"), by="all")) == [
        ["/dev/video0", "/dev/video1", "/dev/video2", "/dev/media0"]
    ]
    studio.usb("1-1", "0403:6001", "A")
    studio.usb("1-2", "0403:6001", "B", number=5)
    [unit] = GroupSelector([DeviceGroup(usb=[UsbFilter(vendor=["0403"], nodes=["usb"])], by="all", count=3)]).find(
        studio.host
    )
    assert (found(unit), unit.count) == (["/dev/bus/usb/001/004", "/dev/bus/usb/001/005"], 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_nodes_of_one_piece_of_hardware_belong_together(machine: Machine) -> None:
    for port, number in (("1-1", 1), ("1-2", 2)):
        usb = machine.usb(port, "046d:0825", number=number)
        for kind, subsystem, major in ((f"video{3 - number}", "video4linux", 81), (f"controlC{number}", "sound", 116)):
            machine.usb_child(usb, kind, subsystem)
            made = machine.root / "dev" / kind
            made.unlink()
            os.mknod(made, 0o20600, os.makedev(major, number))
            place = f"/sys/devices/{usb}/{port}:1.0/{subsystem}/{kind}"
            machine.link(f"/sys/dev/char/{major}:{number}", place)
    machine.node("videoX")
    assert rows(machine, DeviceGroup(paths=patterns("/dev/video*", "/dev/controlC*"), by="parent")) == [
        ["/dev/video1", "/dev/controlC2"],
        ["/dev/video2", "/dev/controlC1"],
    ]
    assert GroupSelector([DeviceGroup(paths=patterns("/dev/video1"))]).find(machine.host)[0].numa == (0,)


class Found:
    """Finds what it is given."""

    def __init__(self, *units: Unit) -> None:
        self._units = units

    def find(self, host: object) -> tuple[Unit, ...]:
        return self._units

    def directories(self, host: object) -> list[Path]:
        return []

    def concerns(self, event: object) -> bool:
        return False


def test_all_together_works_while_one_part_does(machine: Machine) -> None:
    good = Unit("a", (HostPath("/dev/a"), HostPath("/dev/cm")), {"rdma": "a"}, numa=(0,))
    other = Unit("b", (HostPath("/dev/b"), HostPath("/dev/cm")), {"rdma": "b"}, numa=(1,))
    bad = Unit("c", (HostPath("/dev/c"),), fault="broken")
    [unit] = AllAsOne(Found(good, other, bad)).find(machine.host)
    assert (unit.id, found(unit), unit.numa, unit.fault) == ("all", ["/dev/a", "/dev/cm", "/dev/b"], (0, 1), "")
    assert unit.facts == {"rdma": "a,b"}
    assert AllAsOne(Found(bad)).find(machine.host)[0].fault == "broken"
    assert AllAsOne(Found()).find(machine.host) == []


def test_names_that_differ_in_characters_outside_ids_are_two_devices(machine: Machine) -> None:
    for name in ("t!", "t*", "a b", "a-b", "a/b"):
        machine.node(name)
    found = machine.find(PathSelector([PathPattern(path="/dev/*"), PathPattern(path="/dev/a/b")]))
    assert sorted(unit.paths[0].path for unit in found.values()) == [
        "/dev/a",
        "/dev/a b",
        "/dev/a-b",
        "/dev/a/b",
        "/dev/t!",
        "/dev/t*",
    ]
