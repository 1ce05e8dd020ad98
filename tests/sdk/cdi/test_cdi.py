"""CDI specs: what could not work is refused, files are whole, and what is read is what was written."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from plugwright import Allocation, DeviceNode, InvalidValue, Mount
from plugwright.sdk import cdi
from plugwright.sdk.cdi.resolution import resolve

TAPE = "example.com/tape"
NODE = cdi.ContainerEdits(device_nodes=[cdi.DeviceNode("/dev/st0")])


def edits(**parts: object) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(**parts)  # type: ignore[arg-type]


def spec(given: cdi.ContainerEdits = NODE, name: str = "st0", kind: str = TAPE) -> cdi.Spec:
    return cdi.Spec(kind, [cdi.Device(name, given)])


FULL = cdi.Spec(
    "example.com/tape.fast",
    [
        cdi.Device("1", NODE, {"slot": "7"}),
        cdi.Device("0000:3b:00.0", edits(net_devices=[cdi.NetDevice("eth7", "net1")])),
    ],
    edits(
        env={"TAPES": "all=1", "EMPTY": ""},
        device_nodes=[
            cdi.DeviceNode("/dev/a", "/dev/b", "c", 9, 0, 0o660, "rw", 0, 5),
            cdi.DeviceNode("/dev/c", permissions="none"),
        ],
        mounts=[cdi.Mount("/a", "/b", "tmpfs", ["ro", "bind"]), cdi.Mount("/c")],
        hooks=[cdi.Hook("createContainer", "/bin/h", ("h", "x"), ("A=b",), 3)],
        intel_rdt=cdi.IntelRdt(
            clos_id="c", l3_cache_schema="L3", mem_bw_schema="MB", schemata=("L3:0=f",), enable_monitoring=True
        ),
        additional_gids=[44],
    ),
    {"who": "us"},
)  # fmt: skip

FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "not UTF-8": (lambda path: path.write_bytes(b'{"kind": "\xff"}'), "can't decode byte 0xff"),
    "nested": (lambda path: path.write_text("[" * 100_000), "recursion"),
    "large": (lambda path: path.write_bytes(b" " * (4 * 2**20 + 1)), "it must have at most 4194304 bytes"),
    "pipe": (os.mkfifo, "it must be a regular file"),
}
VERSIONS: dict[str, tuple[cdi.Spec, str]] = {
    "nodes, env and hooks": (spec(replace(NODE, env={"A": "b"}, hooks=(cdi.Hook("poststop", "/x"),))), "0.3.0"),
    "a mount without a type": (spec(edits(mounts=[cdi.Mount("/a")])), "0.3.0"),
    "a mount with a type": (spec(edits(mounts=[cdi.Mount("/a", type="tmpfs")])), "0.4.0"),
    "another host path": (spec(edits(device_nodes=[cdi.DeviceNode("/dev/a", "/dev/b")])), "0.5.0"),
    "a name that starts with a digit": (spec(name="0000:3b:00.0"), "0.5.0"),
    "a dot in the class": (spec(kind="example.com/tape.fast"), "0.6.0"),
    "annotations of a device": (cdi.Spec(TAPE, [cdi.Device("a", NODE, {"a": "b"})]), "0.6.0"),
    "annotations of the spec": (cdi.Spec(TAPE, [cdi.Device("a", NODE)], annotations={"a": "b"}), "0.6.0"),
    "more groups": (spec(edits(additional_gids=[44])), "0.7.0"),
    "cache classes": (spec(edits(intel_rdt=cdi.IntelRdt(clos_id="x", enable_cmt=True))), "0.7.0"),
    "schemata": (spec(edits(intel_rdt=cdi.IntelRdt(schemata=("L3:0=f",)))), "1.1.0"),
    "network interfaces": (spec(edits(net_devices=[cdi.NetDevice("eth1", "net0")])), "1.1.0"),
    "the edits of all": (cdi.Spec(TAPE, [cdi.Device("a", NODE)], edits(additional_gids=[1])), "0.7.0"),
}
IMPOSSIBLE: dict[str, Callable[[], object]] = {
    "a kind without a class": lambda: spec(kind="example.com"),
    "a class that ends in a dash": lambda: spec(kind="example.com/tape-"),
    "a vendor that starts with a digit": lambda: spec(kind="3com.com/tape"),
    "a class that is too long": lambda: spec(kind="example.com/" + "t" * 64),
    "a device with a slash": lambda: spec(name="a/b"),
    "a device that ends in a colon": lambda: spec(name="a:"),
    "a device without a name": lambda: spec(name=""),
    "a device without edits": lambda: spec(cdi.ContainerEdits()),
    "a device twice": lambda: cdi.Spec(TAPE, [cdi.Device("a", NODE), cdi.Device("a", NODE)]),
    "a node without a path": lambda: cdi.DeviceNode(""),
    "a node's host path that is not absolute": lambda: cdi.DeviceNode("/dev/a", "dev/b"),
    "a node of no type": lambda: cdi.DeviceNode("/dev/a", type="x"),
    "permissions of no kind": lambda: cdi.DeviceNode("/dev/a", permissions="rx"),
    "permissions twice": lambda: cdi.DeviceNode("/dev/a", permissions="rr"),
    "a gid below zero": lambda: cdi.DeviceNode("/dev/a", gid=-1),
    "a mount without a host path": lambda: cdi.Mount("", "/a"),
    "options as a text": lambda: cdi.Mount("/a", options="ro"),
    "a hook of no time": lambda: cdi.Hook("whenever", "/bin/h"),
    "a hook's env without a value": lambda: cdi.Hook("prestart", "/bin/h", env=("A",)),
    "an env name with an equals sign": lambda: edits(env={"A=": "b"}),
    "an env name that is empty": lambda: edits(env={"": "b"}),
    "a group that runtimes ignore": lambda: edits(additional_gids=[0]),
    "an interface twice": lambda: edits(net_devices=[cdi.NetDevice("a", "x"), cdi.NetDevice("b", "x")]),
    "an interface name that is too long": lambda: cdi.NetDevice("a" * 16, "x"),
    "old and new cache monitoring": lambda: cdi.IntelRdt(enable_cmt=True, enable_monitoring=True),
    "a class of service outside its directory": lambda: cdi.IntelRdt(clos_id=".."),
    "a qualified name without a device": lambda: cdi.split_name("example.com/tape"),
    "an annotation that is too long": lambda: cdi.annotation("plugin", "x" * 63, ["example.com/tape=a"]),
    "an owner with a dot": lambda: cdi.SpecDirectory(Path("/x"), "a.b"),
}
UNREADABLE = {
    "an unknown key": ({"extra": 1}, "unknown field `extra`"),
    "an unknown version": ({"cdiVersion": "0.2.0"}, "cdiVersion must be one of 0.3.0"),
    "no version": ({"cdiVersion": None}, "cdiVersion must be one of .*, got None"),
    "edits as a list": ({"containerEdits": []}, "got `array` - at `spec.containerEdits`"),
    "a node without a path": ({"containerEdits": {"deviceNodes": [{}]}}, r"required field `path` .*deviceNodes\[0\]"),
    "an env without a value": ({"containerEdits": {"env": ["A"]}}, "NAME=value"),
    "a version below its features": ({"annotations": {"a": "b"}}, "must be at least 0.6.0 for what it uses, got 0.3.0"),
    "no kind": ({"kind": None}, "Expected `str`, got `null` - at `spec.kind`"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "version"), VERSIONS.values(), ids=VERSIONS)
def test_the_version_is_the_lowest_that_has_what_is_used(made: cdi.Spec, version: str) -> None:
    assert cdi.to_plain(made)["cdiVersion"] == version


@pytest.mark.parametrize("make", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_value_that_runtimes_refuse_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        make()


@pytest.mark.parametrize(("change", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_runtimes_refuse_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        cdi.from_plain({**cdi.to_plain(spec()), **change})


def test_the_file_is_what_the_specification_shows() -> None:
    assert cdi.to_plain(FULL) == {
        "cdiVersion": "1.1.0",
        "kind": "example.com/tape.fast",
        "devices": [
            {"name": "0000:3b:00.0", "containerEdits": {"netDevices": [{"hostInterfaceName": "eth7", "name": "net1"}]}},
            {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/st0"}]}, "annotations": {"slot": "7"}},
        ],
        "containerEdits": {
            "env": ["EMPTY=", "TAPES=all=1"],
            "deviceNodes": [
                {"path": "/dev/a", "hostPath": "/dev/b", "type": "c", "major": 9, "minor": 0, "fileMode": 0o660,
                 "permissions": "rw", "uid": 0, "gid": 5},
                {"path": "/dev/c", "permissions": "none"},
            ],
            "mounts": [
                {"hostPath": "/a", "containerPath": "/b", "type": "tmpfs", "options": ["ro", "bind"]},
                {"hostPath": "/c", "containerPath": "/c"},
            ],
            "hooks": [
                {"hookName": "createContainer", "path": "/bin/h", "args": ["h", "x"], "env": ["A=b"], "timeout": 3}
            ],
            "intelRdt": {"closID": "c", "l3CacheSchema": "L3", "memBwSchema": "MB", "schemata": ["L3:0=f"],
                         "enableMonitoring": True},
            "additionalGids": [44],
        },
        "annotations": {"who": "us"},
    }  # fmt: skip


@pytest.mark.parametrize("made", [FULL, *(made for made, _ in VERSIONS.values())])
def test_a_written_spec_is_read_again_unchanged(made: cdi.Spec, tmp_path: Path) -> None:
    assert cdi.read(cdi.SpecDirectory(tmp_path).write(made)) == made


def test_yaml_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "tape.yaml"
    path.write_text(
        "cdiVersion: v0.3.0\nkind: example.com/tape\ndevices:\n- name: st0\n"
        "  containerEdits:\n    deviceNodes:\n    - path: /dev/st0\n"
    )
    assert cdi.read(path) == spec()


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "{"), ("a.json", "kind: x"), ("a.json", "[]")])
def test_a_file_that_is_none_is_named(tmp_path: Path, name: str, text: str) -> None:
    tmp_path.joinpath(name).write_text(text)
    with pytest.raises(InvalidValue, match=str(tmp_path / name)):
        cdi.read(tmp_path / name)


def test_a_list_of_pairs_is_no_spec() -> None:
    with pytest.raises(InvalidValue, match="CDI spec must be a mapping"):
        cdi.from_plain([*cdi.to_plain(spec()).items()])


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(str.isascii)
PATHS = st.from_regex(r"/[a-z0-9_/.-]{1,20}", fullmatch=True)
NUMBERS = st.none() | st.integers(0, 2**31)
NODES = st.builds(
    cdi.DeviceNode,
    PATHS,
    host_path=PATHS | st.just(""),
    type=st.sampled_from(["", "c", "b"]),
    major=NUMBERS,
    minor=NUMBERS,
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    gid=NUMBERS,
)
EDITS = st.builds(
    cdi.ContainerEdits,
    env=st.dictionaries(
        st.from_regex(r"[A-Z_]{1,9}", fullmatch=True),
        st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    ),
    device_nodes=st.lists(NODES, min_size=1, max_size=3),
    mounts=st.lists(st.builds(cdi.Mount, PATHS, PATHS, options=st.lists(st.sampled_from(["ro", "bind"]))), max_size=2),
    additional_gids=st.lists(st.integers(1, 2**31), max_size=2),
)  # fmt: skip


@settings(max_examples=40)  # of up to four devices with six kinds of edits
@given(devices=st.dictionaries(NAMES, EDITS, min_size=1, max_size=4), common=EDITS)
def test_every_spec_survives_the_file_and_its_order_does_not_matter(
    devices: dict[str, cdi.ContainerEdits], common: cdi.ContainerEdits
) -> None:
    made = [cdi.Device(name, edits) for name, edits in devices.items()]
    written = cdi.to_json(cdi.Spec(TAPE, made, common))
    assert cdi.from_plain(json.loads(written)) == cdi.Spec(TAPE, made, common)
    assert cdi.to_json(cdi.Spec(TAPE, made[::-1], common)) == written


def test_everyone_may_read_the_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = cdi.SpecDirectory(tmp_path / "run" / "cdi").write(spec())
    assert path.name == "example.com-tape_plugwright.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_right_already_is_left_alone(tmp_path: Path) -> None:
    directory = cdi.SpecDirectory(tmp_path)
    before = directory.write(spec()).stat().st_ino
    assert directory.write(spec()).stat().st_ino == before
    assert directory.write(spec(name="st1")).stat().st_ino != before
    directory.file(TAPE).chmod(0o600)
    assert directory.write(spec(name="st1")).stat().st_mode & 0o777 == 0o644


def test_a_directory_that_cannot_be_written_keeps_its_file(tmp_path: Path) -> None:
    directory = cdi.SpecDirectory(tmp_path)
    directory.file(TAPE).mkdir()
    with pytest.raises(OSError, match="directory"):
        directory.write(spec())
    assert list(tmp_path.iterdir()) == [directory.file(TAPE)]


def test_only_our_own_files_are_removed(tmp_path: Path) -> None:
    ours, others = cdi.SpecDirectory(tmp_path, "plugwright"), cdi.SpecDirectory(tmp_path, "plugwright-two")
    kept, gone = ours.write(spec()), ours.write(spec(), "a/b")
    foreign = others.write(spec())
    vendor = tmp_path / "nvidia.com-gpu_plugwright.yaml"
    vendor.write_text("cdiVersion: 0.3.0")
    impostor = tmp_path / "example.com-tape_plugwright.part.json"
    impostor.write_text(cdi.to_json(spec(kind="example.com/disk")))
    assert ours.remove(keep=[kept]) == [gone]
    assert set(tmp_path.iterdir()) == {kept, foreign, vendor, impostor}


@pytest.mark.parametrize(("make", "said"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_others_that_cannot_be_read_disturbs_none_of_ours(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    directory, foreign = cdi.SpecDirectory(tmp_path), tmp_path / "vendor.com-gpu.json"
    ours = directory.write(spec())
    make(foreign)
    with pytest.raises(InvalidValue, match=f"{foreign}: .*{said}"):
        cdi.read(foreign)
    assert directory.files() == [ours]
    assert list(resolve([tmp_path])) == [f"{TAPE}=st0"]


def test_a_pipe_in_place_of_our_file_is_replaced(tmp_path: Path) -> None:
    directory = cdi.SpecDirectory(tmp_path)
    os.mkfifo(directory.file(TAPE))
    assert cdi.read(directory.write(spec())) == spec()


def test_a_later_directory_wins_and_a_name_twice_in_one_is_unusable(tmp_path: Path) -> None:
    first, second = cdi.SpecDirectory(tmp_path / "etc"), cdi.SpecDirectory(tmp_path / "run")
    first.write(cdi.Spec(TAPE, [cdi.Device("a", NODE), cdi.Device("b", NODE), cdi.Device("c", NODE)]))
    second.write(spec(edits(env={"LATER": "1"}), name="a"))
    second.write(spec(name="b"), "one")
    second.write(spec(name="b"), "two")
    second.path.joinpath("broken.json").write_text("{")
    found = resolve([first.path, second.path, tmp_path / "none"])
    assert list(found) == [f"{TAPE}=a", f"{TAPE}=c"]
    assert found[f"{TAPE}=a"].edits.env == {"LATER": "1"}


def test_an_allocation_can_become_edits() -> None:
    allocation = Allocation(
        env={"A": "b"},
        nodes=["/dev/a", DeviceNode("/dev/b", "/dev/c", "r")],
        mounts=[Mount("/x", read_only=True), Mount("/y", "/z")],
    )
    assert cdi.edits_of(allocation) == edits(
        env={"A": "b"},
        device_nodes=[cdi.DeviceNode("/dev/a", permissions="rw"), cdi.DeviceNode("/dev/c", "/dev/b", permissions="r")],
        mounts=[
            cdi.Mount("/x", options=["ro", "nosuid", "bind"]),
            cdi.Mount("/y", "/z", options=["rw", "nosuid", "bind"]),
        ],
    )


def test_names_and_annotations() -> None:
    assert cdi.split_name(cdi.qualified_name(TAPE, "0000:3b:00.0")) == (TAPE, "0000:3b:00.0")
    assert spec().names == ["example.com/tape=st0"]
    assert cdi.annotation("example.com/tape", "st0", spec().names) == {
        "cdi.k8s.io/example.com_tape_st0": "example.com/tape=st0"
    }


def test_a_spec_without_devices_removes_its_file(tmp_path: Path) -> None:
    directory = cdi.SpecDirectory(tmp_path, owner="tape")
    edits = cdi.ContainerEdits(env={"DRIVE": "st0"})
    path = directory.write(cdi.Spec("example.com/tape", [cdi.Device("st0", edits)]))
    assert path.exists()
    for _ in range(2):
        assert directory.write(cdi.Spec("example.com/tape", [])) == path
        assert not path.exists()


def test_a_file_without_devices_is_refused_as_by_a_runtime() -> None:
    with pytest.raises(InvalidValue, match="must have at least one device"):
        cdi.from_plain({"cdiVersion": "0.5.0", "kind": "example.com/tape", "devices": []})
