"""The SR-IOV network device plugin: its pools become PCI resources."""

import json

import pytest
from tests.importers.translation import notes, refused, resources, source

from plugwright.importers.source import ForeignConfig
from plugwright.importers.sriov import recognises, translate


def pool(**keys: object) -> ForeignConfig:
    return source(json.dumps({"resourceList": [{"resourceName": "nics", **keys}]}, indent=1))


def selected(**keys: object) -> object:
    return resources(translate, pool(selectors=keys))["intel.com/nics"]["pci"]


def test_selector_keys_are_translated() -> None:
    assert selected(
        vendors=["8086"],
        devices=["154c", "10ed"],
        drivers=["iavf"],
        pciAddresses=["0000:03:02.0"],
        acpiIndexes=["101"],
        pfNames=["ens1f0#0-3,7", "ens1f1"],
        linkTypes=["ether"],
        pKeys=["0x8001"],
        isRdma=True,
        needVhostNet=True,
    ) == {
        "class": "02",
        "vendor": "8086",
        "device": ["154c", "10ed"],
        "driver": "iavf",
        "address": "0000:03:02.0",
        "acpiIndex": "101",
        "pf": ["ens1f0#0-3,7", "ens1f1"],
        "linkType": "ethernet",
        "pkey": "0x8001",
        "rdma": True,
        "vhost": True,
    }


def test_an_empty_selector_takes_every_network_device() -> None:
    assert selected() == {"class": "02"}


def test_accelerators_are_of_another_class() -> None:
    imported = resources(translate, pool(deviceType="accelerator", selectors=[{"vendors": ["10ee"]}]))
    assert imported["intel.com/nics"]["pci"] == {"class": "12", "vendor": "10ee"}


def test_selectors_in_a_list_are_alternatives_and_the_first_pool_wins() -> None:
    imported = resources(translate, pool(selectors=[{"vendors": ["8086"]}, {"rootDevices": ["0000:3b:00.0#1"]}]))
    assert imported["intel.com/nics"] == {
        "pci": [{"class": "02", "vendor": "8086"}, {"class": "02", "pf": "0000:3b:00.0#1"}],
        "exclusive": True,
    }


def test_topology_and_more_information_are_kept() -> None:
    imported = resources(translate, pool(selectors={}, excludeTopology=True, additionalInfo={"*": {"token": "a"}}))
    assert imported["intel.com/nics"]["topology"] is False
    assert imported["intel.com/nics"]["info"] == {"*": {"token": "a"}}


def test_keys_of_the_operator_are_read_in_any_case() -> None:
    imported = pool(Selectors={"IsRdma": True, "NeedVhostNet": False}, SelectorObj=None)
    assert resources(translate, imported)["intel.com/nics"]["pci"] == {"class": "02", "rdma": True}
    assert notes(translate, imported) == []


def test_prefix_is_that_of_the_pool_the_flag_or_the_domain() -> None:
    pools = [{"resourceName": "a", "selectors": {}}, {"resourceName": "b", "resourcePrefix": "x.y", "selectors": {}}]
    text = json.dumps({"resourceList": pools})
    assert sorted(resources(translate, source(text))) == ["intel.com/a", "x.y/b"]
    assert sorted(resources(translate, source(text, flags=("-resource-prefix", "z.z")))) == ["x.y/b", "z.z/a"]
    assert sorted(resources(translate, source(text, domain="me.io"))) == ["me.io/a", "x.y/b"]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"ddpProfiles": ["GTPv1-C/U"]}, "it has ddpProfiles"),
        ({"vdpaType": "virtio"}, "it has a vdpaType"),
        ({"pfNames": ["a"], "rootDevices": ["0000:3b:00.0"]}, "it has both pfNames and rootDevices"),
    ],
)
def test_unsupported_selector_is_left_out(keys: dict[str, object], reason: str) -> None:
    config = pool(selectors=[keys, {"vendors": ["8086"]}])
    assert resources(translate, config)["intel.com/nics"]["pci"] == {"class": "02", "vendor": "8086"}
    assert notes(translate, config)[0].endswith(f"selectors[0]: {reason}, which plugwright does not support; left out")


def test_a_pool_without_a_selector_left_is_left_out() -> None:
    config = pool(deviceType="auxNetDevice", selectors=[{"auxTypes": ["sf"]}])
    assert resources(translate, config) == {}
    assert "no selector of intel.com/nics remains" in notes(translate, config)[0]


@pytest.mark.parametrize("text", ["ens1f0#0-x", "ens1f0#3-1", "ens1f0#0-70000", "ens1f0#"])
def test_invalid_range_never_widens_the_selector(text: str) -> None:
    config = pool(selectors={"pfNames": [text]})
    assert resources(translate, config) == {}
    assert any(f"{text!r} is not a valid range" in note for note in notes(translate, config))


def test_the_first_entry_of_a_name_decides() -> None:
    config = pool(selectors={"pfNames": ["ens1f0#0", "ENS1F0#1"]})
    assert resources(translate, config)["intel.com/nics"]["pci"] == {"class": "02", "pf": "ens1f0#0"}
    assert "'ENS1F0#1' follows another entry of that name" in notes(translate, config)[0]


def test_id_in_another_spelling_is_normalised() -> None:
    config = pool(selectors={"vendors": ["0x8086"], "devices": ["154C"]})
    assert resources(translate, config)["intel.com/nics"]["pci"] == {"class": "02", "vendor": "8086", "device": "154c"}
    assert len(notes(translate, config)) == 2


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "file:3: resourceList[0]: selectors are missing"),
        (
            {"selectors": {}, "resourceName": "a.b"},
            "resourceName: resourceName must be letters, digits, '_' and '-', got 'a.b'",
        ),
        ({"selectors": {}, "resourceName": "_a"}, "'intel.com/_a' is not a resource name"),
        (
            {"selectors": {}, "deviceType": "disk"},
            "deviceType: must be one of accelerator, auxNetDevice, netDevice",
        ),
        ({"selectors": {"vendors": "8086"}}, "selectors.vendors: must be a list, got '8086'"),
        ({"selectors": {"vendors": ["intel"]}}, "vendors[0]: must be four hexadecimal digits, got 'intel'"),
        ({"selectors": {"linkTypes": ["token-ring"]}}, "linkTypes[0]: must be one of ether, infiniband"),
        ({"selectors": {"isRdma": "yes"}}, "selectors.isRdma: must be true or false"),
        ({"selectors": {"vdpaType": "x"}}, "vdpaType: must be virtio or vhost, got 'x'"),
        ({"selectors": {"vdpaType": "vhost", "isRdma": True}}, "must not have both vdpaType and isRdma"),
    ],
)
def test_error_is_refused_with_its_path(keys: dict[str, object], problem: str) -> None:
    assert problem in refused(translate, pool(**keys))


def test_an_empty_list_is_refused() -> None:
    assert refused(translate, source('{"resourceList": []}')).startswith(
        "file:1: resourceList must have at least one pool"
    )


def test_its_files_are_recognised() -> None:
    assert recognises(pool())
    assert not recognises(source("devices: []\n"))
    assert not recognises(source("- devicematch: x\n"))
