"""generic-device-plugin's file and flags become ours."""

import pytest
from tests.importers.peers import dangerous, notes, refused, resources, source

from plugwright.importers.generic_device_plugin import recognises, translate

LAB = "domain: lab.io\n"
FUSE = "devices: [{name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}]\n"


def device(groups: str) -> str:
    return f"{LAB}devices:\n- name: thing\n  groups:\n{groups}"


def test_a_path_is_a_path() -> None:
    assert resources(translate, source(LAB + FUSE)) == {
        "lab.io/fuse": {"paths": [{"path": "/dev/fuse", "type": "device"}], "permissions": "mrw", "ids": "gdp"}
    }
    assert notes(translate, source(LAB + FUSE)) == []


def test_groups_of_one_path_and_one_count_are_a_list_of_paths() -> None:
    text = device("  - {paths: [{path: /dev/a}], count: 2}\n  - {paths: [{path: /dev/b}], count: 2}\n")
    made = resources(translate, source(text))["lab.io/thing"]
    assert made["paths"] == [{"path": "/dev/a", "type": "device"}, {"path": "/dev/b", "type": "device"}]
    assert made["count"] == 2


def test_groups_that_differ_stay_groups() -> None:
    text = device("  - {paths: [{path: /dev/a}], count: 2}\n  - {paths: [{path: /dev/b}, {path: /dev/c, limit: 3}]}\n")
    made = resources(translate, source(text))["lab.io/thing"]
    assert made["groups"] == [
        {"paths": [{"path": "/dev/a", "type": "device"}], "count": 2},
        {"paths": [{"path": "/dev/b", "type": "device"}, {"path": "/dev/c", "type": "device", "limit": 3}], "count": 1},
    ]


def test_a_mount_keeps_where_it_goes() -> None:
    text = device("  - paths: [{path: /run/x, type: Mount, mountPath: '/a{b}/', readOnly: true, optional: true}]\n")
    made = resources(translate, source(text))["lab.io/thing"]
    assert made["paths"] == [{"path": "/run/x", "to": "/a{{b}}/", "type": "mount", "readOnly": True}]


def test_usb_devices_of_a_group_are_one_device() -> None:
    text = device("  - usb: [{vendor: '0403', product: '6001', serial: 'a[1'}]\n    count: 2\n")
    assert resources(translate, source(text))["lab.io/thing"] == {
        "groups": [
            {"usb": [{"vendor": "0403", "product": "6001", "serial": "a[[]1", "nodes": ["usb"]}], "by": "all"},
        ],
        "count": 2,
        "ids": "gdp",
    }


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("/dev/tty[^0-9]", "/dev/tty[!0-9]"),
        ("/dev/tty[!a]", "/dev/tty[a!]"),
        (r"/dev/a\*b", "/dev/a[*]b"),
        (r"/dev/a\\b", r"/dev/a\\b"),
        ("/dev/**/x?", "/dev/*/x?"),
        ("/dev/{a,b}", "/dev/{a,b}"),
    ],
)
def test_patterns_of_go_are_said_in_ours(theirs: str, ours: str) -> None:
    made = resources(translate, source(device(f"  - paths: [{{path: '{theirs}'}}]\n")))["lab.io/thing"]
    assert made["paths"] == [{"path": ours, "type": "device"}]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1209", "1209"), ("0403", "0403"), ("0x1209", "1209"), ("5e71", "5e71"), ("7", "0007"), ("00AF", "00af")],
)
def test_an_unquoted_usb_id_is_what_lsusb_shows(written: str, meant: str) -> None:
    given = source(device(f"  - usb: [{{vendor: {written}, product: '0001'}}]\n"))
    groups = resources(translate, given)["lab.io/thing"]["groups"]
    assert groups == [{"usb": [{"vendor": meant, "product": "0001", "nodes": ["usb"]}], "by": "all"}]
    warned = any(
        "unquoted, generic-device-plugin may take it for another number" in each for each in notes(translate, given)
    )
    assert warned == (written != "00AF")


def test_what_nobody_reads_is_noted_with_its_line() -> None:
    text = (
        f"{LAB}log-level: debug\ndevices:\n- name: kvm\n  count: 4\n  groups: [{{paths: [{{path: /dev/kvm, x: y}}]}}]\n"
    )
    assert notes(translate, source(text)) == [
        "2: log-level: belongs to `plugwright run --log-level`",
        "5: devices[0].count: generic-device-plugin looks at no count here, only in a group; left out",
        "6: devices[0].groups[0].paths[0]: unknown key 'x', left out",
    ]


def test_a_type_in_the_wrong_case_is_what_it_looks_like() -> None:
    given = source(device("  - paths: [{path: /srv/x, type: mount}]\n"))
    assert resources(translate, given)["lab.io/thing"]["paths"] == [{"path": "/srv/x", "type": "mount"}]
    assert "hands out nothing for 'mount'" in notes(translate, given)[0]


def test_what_rules_the_node_is_taken_over_only_if_that_is_wanted() -> None:
    given = source(device("  - paths: [{path: /dev/mem}]\n"))
    assert resources(translate, given) == {}
    assert notes(translate, given) == [
        "3: devices[0]: lab.io/thing is left out; --dangerous takes it over",
        "5: devices[0].groups[0].paths[0].path: /dev/mem is the memory of the node",
    ]
    assert resources(translate, dangerous(given))["lab.io/thing"]["dangerous"] is True


def test_usb_ids_that_match_nothing_are_left_out() -> None:
    given = source(device("  - usb: [{vendor: '1209'}]\n"))
    assert resources(translate, given) == {}
    assert [each.partition(": ")[2] for each in notes(translate, given)] == [
        "devices[0]: no group of thing could ever find a device, left out",
        "devices[0].groups[0].usb[0]: without a vendor and a product it finds nothing, left out",
        "devices[0].groups[0]: this group finds nothing, left out",
    ]


class TestFlags:
    """Flags are stronger than variables, and those than the file."""

    def test_each_device_is_yaml_or_json(self) -> None:
        json = '{"name":"b1","groups":[{"paths":[{"path":"/dev/b"}]}]}'
        given = source(
            flags=(
                "--domain",
                "lab.io",
                "--device",
                "name: a1\ngroups: [{paths: [{path: /dev/a}]}]",
                f"--device={json}",
            )
        )
        assert sorted(resources(translate, given)) == ["lab.io/a1", "lab.io/b1"]

    def test_devices_by_flag_replace_those_of_the_file(self) -> None:
        given = source(LAB + FUSE, flags=("--device", "{name: kvm, groups: [{paths: [{path: /dev/kvm}]}]}"))
        assert list(resources(translate, given)) == ["lab.io/kvm"]
        assert "the file's own devices are not looked at" in notes(translate, given)[0]

    def test_our_domain_wins_over_theirs(self) -> None:
        assert list(resources(translate, source(LAB + FUSE, flags=("--domain=x.y",)))) == ["x.y/fuse"]
        assert list(resources(translate, source(LAB + FUSE, flags=("--domain=x.y",), domain="me.io"))) == ["me.io/fuse"]

    def test_without_a_domain_the_old_default_is_said(self) -> None:
        assert list(resources(translate, source(FUSE))) == ["squat.ai/fuse"]
        assert notes(translate, source(FUSE)) == [
            "1: no domain is given: squat.ai, the default before 0.2.0; later ones say --domain devic.es"
        ]

    def test_an_unknown_flag_is_noted(self) -> None:
        assert notes(translate, source(LAB + FUSE, flags=("--devise", "x"))) == ["2: unknown flag 'devise', left out"]

    def test_a_file_that_the_flags_name_is_asked_for(self) -> None:
        said = refused(translate, source(flags=("--config", "/etc/gdp/config.yaml")))
        assert said == "flags:2: its devices are in /etc/gdp/config.yaml: give that file, or the ConfigMap with it"
        assert list(resources(translate, source(LAB + FUSE, flags=("--config=/etc/x",)))) == ["lab.io/fuse"]

    def test_a_flag_without_its_value_is_refused(self) -> None:
        assert refused(translate, source(LAB + FUSE, flags=("--device",))) == "flags:1: nothing follows --device"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("devices: []\n", "needs at least one device"),
        ("devices: {}\n", "file:1: devices: a list is needed here"),
        ("device: []\ndevices: []\n", "file:2: devices: device and devices are two names of one list"),
        (FUSE.replace("fuse,", "f,"), "file:1: devices[0].name: a name has two or more of a-z"),
        (FUSE.replace("fuse,", "Fuse,"), "file:1: devices[0].name: a name has two or more of a-z"),
        (FUSE.replace("name: fuse,", ""), "file:1: devices[0]: a name has two or more of a-z"),
        (FUSE.replace("/dev/fuse", "dev/fuse"), "paths[0].path: an absolute path without '..' is needed"),
        (FUSE.replace("/dev/fuse", "/dev/../x"), "paths[0].path: an absolute path without '..' is needed"),
        (FUSE.replace("/dev/fuse", "'/dev/[a'"), "paths[0].path: '/dev/[a' has a [class] that is not understood"),
        (FUSE.replace("/dev/fuse", "'/dev/\\'"), "ends in the middle of a pattern"),
        (FUSE.replace("path: /dev/fuse", ""), "file:1: devices[0].groups[0].paths[0]: path is missing"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, permissions: rwx"), "permissions: permissions are letters of 'mrw'"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, type: Disk"), "type: a type is Device or Mount, not 'Disk'"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, mountPath: x"), "mountPath: an absolute path without '..' is needed"),
        (FUSE.replace("/dev/fuse}]", "/dev/fuse}], usb: [{}]"), "groups[0]: a group has paths or usb, not both"),
        (FUSE.replace("/dev/fuse}]", "/dev/fuse}], count: 200000"), "count: at most 100,000 can be offered"),
        (device("  - usb: [{vendor: xyz, product: 1}]\n"), "vendor: a USB id has four hexadecimal digits, not 'xyz'"),
        (f"domain: UPPER\n{FUSE}", "file:2: devices[0]: 'UPPER/fuse' is not a resource name"),
        (
            f"{LAB}devices:\n- {{name: ab}}\n- {{name: ab}}\n",
            "file:4: devices[1]: a second device of the name ab, the first is in line 3",
        ),
    ],
)
def test_what_the_peer_refuses_is_refused_with_its_line(text: str, what: str) -> None:
    assert what in refused(translate, source(text))


def test_its_files_and_flags_are_known() -> None:
    assert recognises(source(FUSE))
    assert recognises(source(flags=("--device={}",)))
    assert recognises(source(flags=("--device", "{}")))
    assert not recognises(source(flags=("--device-list-strategy=envvar",)))
    assert not recognises(source("resourceList: []\n"))
    assert not recognises(source("- devicematch: x\n"))
