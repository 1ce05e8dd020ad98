"""The shared RDMA device plugin's entries become shared RDMA resources of ours."""

import json

import pytest
from tests.importers.peers import notes, refused, resources, source

from plugwright.importers.rdma import recognises, translate
from plugwright.importers.source import Source

NEEDED = ["uverbs", "umad", "rdma_cm"]


def entry(**keys: object) -> Source:
    return source(json.dumps({"configList": [{"resourceName": "hca", "rdmaHcaMax": 8, **keys}]}, indent=1))


def test_all_that_is_found_is_shared_by_so_many() -> None:
    assert resources(translate, entry(devices=["ib0", "ib1"])) == {
        "rdma/hca": {
            "rdma": {"interface": ["ib0", "ib1"], "required": NEEDED},
            "together": True,
            "count": 8,
            "permissions": "rwm",
            "topology": False,
            "ids": "index",
        }
    }


def test_each_selector_has_its_like() -> None:
    selectors = {
        "vendors": ["15b3"],
        "deviceIDs": ["1017"],
        "drivers": ["mlx5_core"],
        "ifNames": ["ib*"],
        "linkTypes": ["infiniband"],
    }
    assert resources(translate, entry(selectors=selectors))["rdma/hca"]["rdma"] == {
        "interface": "ib[*]",
        "vendor": "15b3",
        "device": "1017",
        "driver": "mlx5_core",
        "linkType": "infiniband",
        "required": NEEDED,
    }


def test_no_selectors_take_every_adapter() -> None:
    assert resources(translate, entry(selectors={}))["rdma/hca"]["rdma"] == {"required": NEEDED}


def test_a_resource_without_units_is_left_out() -> None:
    given = entry(devices=["ib0"], rdmaHcaMax=0)
    assert resources(translate, given) == {}
    assert notes(translate, given) == [
        "5: configList[0].rdmaHcaMax: hca has no units, so no pod ever gets one; left out"
    ]


def test_prefixes_come_from_the_entry_or_us() -> None:
    assert list(resources(translate, entry(devices=["a"], resourcePrefix="x.y"))) == ["x.y/hca"]
    given = source('{"configList": [{"resourceName": "hca", "rdmaHcaMax": 1, "devices": ["a"]}]}', domain="me.io")
    assert list(resources(translate, given)) == ["me.io/hca"]


def test_what_has_no_like_is_noted() -> None:
    one = '{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["b"], "x": 2}'
    text = f'{{"periodicUpdateInterval": 0, "extra": 1,\n "configList": [{one}]}}'
    assert notes(translate, source(text, flags=("-use-cdi",))) == [
        "1: unknown key 'extra', left out",
        "1: periodicUpdateInterval: left out: what is plugged in or goes away is seen at once",
        "1: write `cdi: true` beside each resource for that",
        "2: configList[0]: unknown key 'x', left out",
    ]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({}, "either selectors or devices"),
        ({"devices": ["a"], "selectors": {}}, "either selectors or devices"),
        (
            {"devices": ["a"], "resourceName": "a-b"},
            "resourceName: a resourceName has letters, digits and '_', not 'a-b'",
        ),
        ({"devices": ["a"], "rdmaHcaMax": -1}, "rdmaHcaMax: a whole number is needed here, not '-1'"),
        ({"devices": ["a"], "resourcePrefix": "A"}, "'A/hca' is not a resource name"),
        ({"selectors": {"vendors": ["mellanox"]}}, "vendors[0]: an id has four hexadecimal digits"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(keys: dict[str, object], what: str) -> None:
    said = refused(translate, entry(**keys))
    assert said.startswith("file:")
    assert what in said


def test_two_of_one_name_are_refused() -> None:
    one = '{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["b"]}'
    said = refused(translate, source(f'{{"configList": [{one},\n{one}]}}'))
    assert said == "file:2: configList[1]: rdma/a is a resource already in line 1"


def test_its_files_are_known() -> None:
    assert recognises(entry())
    assert not recognises(source("devices: []\n"))
