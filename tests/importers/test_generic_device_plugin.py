"""generic-device-plugin: its file and flags."""

import pytest
from tests.importers.translation import dangerous, notes, refused, resources, source

from plugwright.importers.generic_device_plugin import recognises, translate

LAB = "domain: lab.io\n"
FUSE = "devices: [{name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}]\n"


def device(groups: str) -> str:
    return f"{LAB}devices:\n- name: thing\n  groups:\n{groups}"


def test_path_becomes_a_path() -> None:
    assert resources(translate, source(LAB + FUSE)) == {
        "lab.io/fuse": {"paths": [{"path": "/dev/fuse", "type": "device"}], "permissions": "mrw", "ids": "gdp"}
    }
    assert notes(translate, source(LAB + FUSE)) == []


def test_groups_of_one_path_and_one_count_are_a_list_of_paths() -> None:
    text = device("  - {paths: [{path: /dev/a}], count: 2}\n  - {paths: [{path: /dev/b}], count: 2}\n")
    imported = resources(translate, source(text))["lab.io/thing"]
    assert imported["paths"] == [{"path": "/dev/a", "type": "device"}, {"path": "/dev/b", "type": "device"}]
    assert imported["count"] == 2


def test_groups_that_differ_stay_groups() -> None:
    text = device("  - {paths: [{path: /dev/a}], count: 2}\n  - {paths: [{path: /dev/b}, {path: /dev/c, limit: 3}]}\n")
    imported = resources(translate, source(text))["lab.io/thing"]
    assert imported["groups"] == [
        {"paths": [{"path": "/dev/a", "type": "device"}], "count": 2},
        {"paths": [{"path": "/dev/b", "type": "device"}, {"path": "/dev/c", "type": "device", "limit": 3}], "count": 1},
    ]


def test_mount_keeps_its_container_path() -> None:
    text = device("  - paths: [{path: /run/x, type: Mount, mountPath: '/a{b}/', readOnly: true, optional: true}]\n")
    imported = resources(translate, source(text))["lab.io/thing"]
    assert imported["paths"] == [{"path": "/run/x", "to": "/a{{b}}/", "type": "mount", "readOnly": True}]


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
def test_go_patterns_are_translated(theirs: str, ours: str) -> None:
    imported = resources(translate, source(device(f"  - paths: [{{path: '{theirs}'}}]\n")))["lab.io/thing"]
    assert imported["paths"] == [{"path": ours, "type": "device"}]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1209", "1209"), ("0403", "0403"), ("0x1209", "1209"), ("5e71", "5e71"), ("7", "0007"), ("00AF", "00af")],
)
def test_an_unquoted_usb_id_is_what_lsusb_shows(written: str, meant: str) -> None:
    config = source(device(f"  - usb: [{{vendor: {written}, product: '0001'}}]\n"))
    groups = resources(translate, config)["lab.io/thing"]["groups"]
    assert groups == [{"usb": [{"vendor": meant, "product": "0001", "nodes": ["usb"]}], "by": "all"}]
    warned = any("may read this unquoted id as a number" in note for note in notes(translate, config))
    assert warned == (written != "00AF")


def test_ignored_keys_are_noted_with_their_line() -> None:
    text = (
        f"{LAB}log-level: debug\ndevices:\n- name: kvm\n  count: 4\n  groups: [{{paths: [{{path: /dev/kvm, x: y}}]}}]\n"
    )
    assert notes(translate, source(text)) == [
        "2: log-level: use `plugwright run --log-level` instead",
        "5: devices[0].count: generic-device-plugin ignores count here, and reads it in groups; left out",
        "6: devices[0].groups[0].paths[0]: unknown key 'x', left out",
    ]


def test_type_in_the_wrong_case_is_imported() -> None:
    config = source(device("  - paths: [{path: /srv/x, type: mount}]\n"))
    assert resources(translate, config)["lab.io/thing"]["paths"] == [{"path": "/srv/x", "type": "mount"}]
    assert "generic-device-plugin ignores type 'mount'; imported as mount" in notes(translate, config)[0]


def test_dangerous_path_is_imported_on_request_alone() -> None:
    config = source(device("  - paths: [{path: /dev/mem}]\n"))
    assert resources(translate, config) == {}
    assert notes(translate, config) == [
        "3: devices[0]: lab.io/thing is left out; --dangerous imports it",
        "5: devices[0].groups[0].paths[0].path: /dev/mem is the memory of the node",
    ]
    assert resources(translate, dangerous(config))["lab.io/thing"]["dangerous"] is True


def test_pattern_that_may_match_a_dangerous_path_is_imported_with_a_note() -> None:
    config = source(device("  - paths: [{path: /dev/ipmi*}]\n"))
    assert "dangerous" not in resources(translate, config)["lab.io/thing"]
    [note] = notes(translate, config)
    assert note == (
        "5: devices[0].groups[0].paths[0].path: may match /dev/ipmi0, the management controller, which turns "
        "the node off and sets its firmware; such a device is listed as Unhealthy, without 'dangerous: true'"
    )


def test_usb_ids_that_match_nothing_are_left_out() -> None:
    config = source(device("  - usb: [{vendor: '1209'}]\n"))
    assert resources(translate, config) == {}
    assert [note.partition(": ")[2] for note in notes(translate, config)] == [
        "devices[0]: no group of thing can match a device, left out",
        "devices[0].groups[0].usb[0]: matches nothing without a vendor and a product, left out",
        "devices[0].groups[0]: this group matches nothing, left out",
    ]


class TestFlags:
    """Flags override variables, and variables override the file."""

    def test_device_flag_is_yaml_or_json(self) -> None:
        json = '{"name":"b1","groups":[{"paths":[{"path":"/dev/b"}]}]}'
        config = source(
            flags=(
                "--domain",
                "lab.io",
                "--device",
                "name: a1\ngroups: [{paths: [{path: /dev/a}]}]",
                f"--device={json}",
            )
        )
        assert sorted(resources(translate, config)) == ["lab.io/a1", "lab.io/b1"]

    def test_devices_by_flag_replace_those_of_the_file(self) -> None:
        config = source(LAB + FUSE, flags=("--device", "{name: kvm, groups: [{paths: [{path: /dev/kvm}]}]}"))
        assert list(resources(translate, config)) == ["lab.io/kvm"]
        assert "the file's devices are ignored because --device is given" in notes(translate, config)[0]

    def test_domain_option_overrides_the_domain_flag(self) -> None:
        assert list(resources(translate, source(LAB + FUSE, flags=("--domain=x.y",)))) == ["x.y/fuse"]
        assert list(resources(translate, source(LAB + FUSE, flags=("--domain=x.y",), domain="me.io"))) == ["me.io/fuse"]

    def test_default_domain_is_noted(self) -> None:
        assert list(resources(translate, source(FUSE))) == ["squat.ai/fuse"]
        assert notes(translate, source(FUSE)) == [
            "1: no domain is given: squat.ai, the default before 0.2.0; later ones need --domain devic.es"
        ]

    def test_an_unknown_flag_is_noted(self) -> None:
        assert notes(translate, source(LAB + FUSE, flags=("--devise", "x"))) == ["2: unknown flag 'devise', left out"]

    def test_config_flag_without_its_file_is_refused(self) -> None:
        error = refused(translate, source(flags=("--config", "/etc/gdp/config.yaml")))
        assert (
            error
            == "flags:2: its devices are in /etc/gdp/config.yaml: import that file, or the ConfigMap that holds it"
        )
        assert list(resources(translate, source(LAB + FUSE, flags=("--config=/etc/x",)))) == ["lab.io/fuse"]

    def test_a_flag_without_its_value_is_refused(self) -> None:
        assert (
            refused(translate, source(LAB + FUSE, flags=("--device",)))
            == "flags:1: --device must be followed by a value"
        )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("devices: []\n", "needs at least one device"),
        ("devices: {}\n", "file:1: devices: must be a list"),
        ("device: []\ndevices: []\n", "file:2: devices: must not stand beside `device`"),
        (FUSE.replace("fuse,", "f,"), "file:1: devices[0].name: name must be two or more of a-z"),
        (FUSE.replace("fuse,", "Fuse,"), "file:1: devices[0].name: name must be two or more of a-z"),
        (FUSE.replace("name: fuse,", ""), "file:1: devices[0]: name must be two or more of a-z"),
        (FUSE.replace("/dev/fuse", "dev/fuse"), "paths[0].path: must be an absolute path without '..'"),
        (FUSE.replace("/dev/fuse", "/dev/../x"), "paths[0].path: must be an absolute path without '..'"),
        (FUSE.replace("/dev/fuse", "'/dev/.\\./x'"), "paths[0].path: must be an absolute path without '..'"),
        (
            FUSE.replace("/dev/fuse", "'/dev/[a'"),
            "paths[0].path: must have complete character classes such as [a-z], got '/dev/[a'",
        ),
        (FUSE.replace("/dev/fuse", "'/dev/\\'"), "must not end with a single backslash"),
        (FUSE.replace("path: /dev/fuse", ""), "file:1: devices[0].groups[0].paths[0]: path is missing"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, permissions: rwx"), "permissions: must be letters of 'mrw'"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, type: Disk"), "type: must be Device or Mount, got 'Disk'"),
        (FUSE.replace("/dev/fuse", "/dev/fuse, mountPath: x"), "mountPath: must be an absolute path without '..'"),
        (FUSE.replace("/dev/fuse}]", "/dev/fuse}], usb: [{}]"), "groups[0]: must have either paths or usb, got both"),
        (FUSE.replace("/dev/fuse}]", "/dev/fuse}], count: 200000"), "count: must be at most 100,000"),
        (device("  - usb: [{vendor: xyz, product: 1}]\n"), "vendor: must be up to four hexadecimal digits, got 'xyz'"),
        (f"domain: UPPER\n{FUSE}", "file:2: devices[0]: 'UPPER/fuse' is not a resource name"),
        (
            f"{LAB}devices:\n- {{name: ab}}\n- {{name: ab}}\n",
            "file:4: devices[1]: device ab must not be repeated, the first is in line 3",
        ),
    ],
)
def test_invalid_file_is_refused_with_its_line(text: str, problem: str) -> None:
    assert problem in refused(translate, source(text))


def test_its_files_and_flags_are_recognised() -> None:
    assert recognises(source(FUSE))
    assert recognises(source(flags=("--device={}",)))
    assert recognises(source(flags=("--device", "{}")))
    assert not recognises(source(flags=("--device-list-strategy=envvar",)))
    assert not recognises(source("resourceList: []\n"))
    assert not recognises(source("- devicematch: x\n"))
