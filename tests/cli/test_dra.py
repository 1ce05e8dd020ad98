"""`plugwright dra`: what drivers publish and which claims have it, read from an API server over HTTP."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.processes import Ended, ended
from tests.kube.serving import Answer, api_server

from plugwright.cli.dra import incomplete_pools, listed_claims, published_devices


def device_slice(name: str, generation: int = 1, count: int = 1, devices: tuple[str, ...] = ("st0",)) -> dict[str, Any]:
    attributes = {"model": {"string": "LTO-9"}, "slot": {"int": 4}}
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": "tape.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": generation, "resourceSliceCount": count},
            "devices": [
                {"name": device, "attributes": attributes, "capacity": {"memory": {"value": "1Gi"}}}
                for device in devices
            ],
        },
    }


def claim(name: str, *devices: str, pods: tuple[str, ...] = (), allocated: bool = True) -> dict[str, Any]:
    results = [{"driver": "tape.example.com", "pool": "n1", "device": key, "request": "tape"} for key in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": "u"} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if allocated else {}
    return {"metadata": {"namespace": "default", "name": name}, "status": status}


SLICES = [device_slice("a", devices=("st10", "st9")), device_slice("old", generation=0, devices=("gone",))]
CLAIMS = [claim("read", "st9", pods=("reader",)), claim("waits", allocated=False), claim("left", "st10")]


def test_devices_are_those_of_the_newest_generation_with_their_claims() -> None:
    devices = published_devices(SLICES, CLAIMS)
    assert [(device["device"], device["claims"]) for device in devices] == [
        ("st9", ["default/read"]),
        ("st10", ["default/left"]),
    ]
    assert devices[0]["attributes"] == {"model": "LTO-9", "slot": 4}


def test_a_pool_without_all_of_its_slices_is_said() -> None:
    [(pool, text)] = incomplete_pools([device_slice("a", count=2)])
    assert text == "pool n1 of tape.example.com is incomplete: it has 1 of 2 slices, so none is used"
    assert pool["node"] == "n1"


def test_a_claim_has_a_state() -> None:
    ended = claim("ends", "st0")
    ended["metadata"]["deletionTimestamp"] = "2026-11-16T08:00:00Z"
    states = {listed["name"]: listed["state"] for listed in listed_claims([*CLAIMS, ended])}
    assert states == {"ends": "deleting", "left": "allocated", "read": "reserved", "waits": "pending"}


assert Answer, api_server
assert Ended, ended
assert Iterator, (json, os, sys, Path, pytest, yaml)
