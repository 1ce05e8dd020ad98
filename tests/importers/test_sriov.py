"""The SR-IOV network device plugin's pools become PCI resources of ours."""

import json

import pytest
from tests.importers.peers import notes, refused, resources, source

from plugwright.importers.source import Source
from plugwright.importers.sriov import recognises, translate


def pool(**keys: object) -> Source:
    return source(json.dumps({"resourceList": [{"resourceName": "nics", **keys}]}, indent=1))


def selected(**keys: object) -> object:
    return resources(translate, pool(selectors=keys))["intel.com/nics"]["pci"]


def test_each_key_of_a_selector_has_its_like() -> None:
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
    made = resources(translate, pool(deviceType="accelerator", selectors=[{"vendors": ["10ee"]}]))
    assert made["intel.com/nics"]["pci"] == {"class": "12", "vendor": "10ee"}


def test_selectors_in_a_list_are_alternatives_and_the_first_pool_wins() -> None:
    made = resources(translate, pool(selectors=[{"vendors": ["8086"]}, {"rootDevices": ["0000:3b:00.0#1"]}]))
    assert made["intel.com/nics"] == {
        "pci": [{"class": "02", "vendor": "8086"}, {"class": "02", "pf": "0000:3b:00.0#1"}],
        "exclusive": True,
    }


def test_topology_and_more_information_are_kept() -> None:
    made = resources(translate, pool(selectors={}, excludeTopology=True, additionalInfo={"*": {"token": "a"}}))
    assert made["intel.com/nics"]["topology"] is False
    assert made["intel.com/nics"]["info"] == {"*": {"token": "a"}}


def test_keys_in_any_case_and_those_of_the_operator_are_read() -> None:
    made = pool(Selectors={"IsRdma": True, "NeedVhostNet": False}, SelectorObj=None)
    assert resources(translate, made)["intel.com/nics"]["pci"] == {"class": "02", "rdma": True}
    assert notes(translate, made) == []


def test_prefixes_come_from_the_pool_the_flag_or_us() -> None:
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
def test_a_selector_that_we_cannot_follow_is_left_out(keys: dict[str, object], reason: str) -> None:
    given = pool(selectors=[keys, {"vendors": ["8086"]}])
    assert resources(translate, given)["intel.com/nics"]["pci"] == {"class": "02", "vendor": "8086"}
    assert notes(translate, given)[0].endswith(f"selectors[0]: {reason}, which is not looked at here; left out")


def test_a_pool_without_a_selector_left_is_left_out() -> None:
    given = pool(deviceType="auxNetDevice", selectors=[{"auxTypes": ["sf"]}])
    assert resources(translate, given) == {}
    assert "no selector of intel.com/nics is left" in notes(translate, given)[0]


@pytest.mark.parametrize("text", ["ens1f0#0-x", "ens1f0#3-1", "ens1f0#0-70000", "ens1f0#"])
def test_a_range_that_is_not_understood_never_widens_the_selector(text: str) -> None:
    given = pool(selectors={"pfNames": [text]})
    assert resources(translate, given) == {}
    assert any(f"{text!r} is not understood, there it selects nothing" in each for each in notes(translate, given))


def test_the_first_entry_of_a_name_decides() -> None:
    given = pool(selectors={"pfNames": ["ens1f0#0", "ENS1F0#1"]})
    assert resources(translate, given)["intel.com/nics"]["pci"] == {"class": "02", "pf": "ens1f0#0"}
    assert "'ENS1F0#1' comes after another of that name" in notes(translate, given)[0]


def test_an_id_that_matches_nothing_there_is_what_it_was_meant_to_be() -> None:
    given = pool(selectors={"vendors": ["0x8086"], "devices": ["154C"]})
    assert resources(translate, given)["intel.com/nics"]["pci"] == {"class": "02", "vendor": "8086", "device": "154c"}
    assert len(notes(translate, given)) == 2


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({}, "file:3: resourceList[0]: selectors are missing"),
        (
            {"selectors": {}, "resourceName": "a.b"},
            "resourceName: a resourceName has letters, digits, '_' and '-', not 'a.b'",
        ),
        ({"selectors": {}, "resourceName": "_a"}, "'intel.com/_a' is not a resource name"),
        (
            {"selectors": {}, "deviceType": "disk"},
            "deviceType: a deviceType is one of accelerator, auxNetDevice, netDevice",
        ),
        ({"selectors": {"vendors": "8086"}}, "selectors.vendors: a list is needed here, not '8086'"),
        ({"selectors": {"vendors": ["intel"]}}, "vendors[0]: an id has four hexadecimal digits, not 'intel'"),
        ({"selectors": {"linkTypes": ["token-ring"]}}, "linkTypes[0]: a link type is one of ether, infiniband"),
        ({"selectors": {"isRdma": "yes"}}, "selectors.isRdma: true or false is needed here"),
        ({"selectors": {"vdpaType": "x"}}, "vdpaType: a vdpaType is virtio or vhost, not 'x'"),
        ({"selectors": {"vdpaType": "vhost", "isRdma": True}}, "vdpaType and isRdma exclude each other"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(keys: dict[str, object], what: str) -> None:
    assert what in refused(translate, pool(**keys))


def test_an_empty_list_is_refused() -> None:
    assert refused(translate, source('{"resourceList": []}')).startswith("file:1: resourceList is empty")


def test_its_files_are_known() -> None:
    assert recognises(pool())
    assert not recognises(source("devices: []\n"))
    assert not recognises(source("- devicematch: x\n"))
