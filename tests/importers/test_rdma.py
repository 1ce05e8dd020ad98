"""The shared RDMA device plugin: its entries become shared RDMA resources."""

import json

import pytest
from tests.importers.translation import notes, refused, resources, source

from plugwright.importers.rdma import recognises, translate
from plugwright.importers.source import ForeignConfig

REQUIRED = ["uverbs", "umad", "rdma_cm"]


def entry(**keys: object) -> ForeignConfig:
    return source(json.dumps({"configList": [{"resourceName": "hca", "rdmaHcaMax": 8, **keys}]}, indent=1))


def test_all_adapters_are_shared_by_all_units() -> None:
    assert resources(translate, entry(devices=["ib0", "ib1"])) == {
        "rdma/hca": {
            "rdma": {"interface": ["ib0", "ib1"], "required": REQUIRED},
            "together": True,
            "count": 8,
            "permissions": "rwm",
            "topology": False,
            "ids": "index",
        }
    }


def test_selectors_are_translated() -> None:
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
        "required": REQUIRED,
    }


def test_no_selectors_take_every_adapter() -> None:
    assert resources(translate, entry(selectors={}))["rdma/hca"]["rdma"] == {"required": REQUIRED}


def test_a_resource_without_units_is_left_out() -> None:
    config = entry(devices=["ib0"], rdmaHcaMax=0)
    assert resources(translate, config) == {}
    assert notes(translate, config) == [
        "5: configList[0].rdmaHcaMax: hca has no units, so no pod ever gets one; left out"
    ]


def test_prefix_is_that_of_the_entry_or_the_domain() -> None:
    assert list(resources(translate, entry(devices=["a"], resourcePrefix="x.y"))) == ["x.y/hca"]
    config = source('{"configList": [{"resourceName": "hca", "rdmaHcaMax": 1, "devices": ["a"]}]}', domain="me.io")
    assert list(resources(translate, config)) == ["me.io/hca"]


def test_unsupported_keys_are_noted() -> None:
    one = '{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["b"], "x": 2}'
    text = f'{{"periodicUpdateInterval": 0, "extra": 1,\n "configList": [{one}]}}'
    assert notes(translate, source(text, flags=("-use-cdi",))) == [
        "1: unknown key 'extra', left out",
        "1: periodicUpdateInterval: left out: hardware changes are noticed immediately",
        "1: write `cdi: true` beside each resource instead",
        "2: configList[0]: unknown key 'x', left out",
    ]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "must have either selectors or devices"),
        ({"devices": ["a"], "selectors": {}}, "must have either selectors or devices"),
        (
            {"devices": ["a"], "resourceName": "a-b"},
            "resourceName: resourceName must be letters, digits and '_', got 'a-b'",
        ),
        ({"devices": ["a"], "rdmaHcaMax": -1}, "rdmaHcaMax: must be an integer, got '-1'"),
        ({"devices": ["a"], "resourcePrefix": "A"}, "'A/hca' is not a resource name"),
        ({"selectors": {"vendors": ["mellanox"]}}, "vendors[0]: must be four hexadecimal digits"),
    ],
)
def test_error_is_refused_with_its_path(keys: dict[str, object], problem: str) -> None:
    error = refused(translate, entry(**keys))
    assert error.startswith("file:")
    assert problem in error


def test_repeated_name_is_refused() -> None:
    one = '{"resourceName": "a", "rdmaHcaMax": 1, "devices": ["b"]}'
    error = refused(translate, source(f'{{"configList": [{one},\n{one}]}}'))
    assert error == "file:2: configList[1]: rdma/a must not be repeated, the first is in line 1"


def test_its_files_are_recognised() -> None:
    assert recognises(entry())
    assert not recognises(source("devices: []\n"))
