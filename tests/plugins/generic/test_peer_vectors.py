"""generic-device-plugin's configurations, imported and served here: the same names, ids and answers that it gave.

The ids are what the kubelet's checkpoint holds, so pods that run keep their devices over the switch.
"""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypedDict

import pytest
from click.testing import CliRunner

from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.errors import ConfigError
from plugwright.model import Allocation, Device
from plugwright.sdk.plugin import Plugin


class Case(TypedDict, total=False):
    case: str
    config: dict[str, Any]
    resource: str
    devices: list[dict[str, str]]
    answers: dict[str, dict[str, Any]]
    fails: str


VECTORS = Path(__file__).parent.parent.parent / "vectors" / "generic-device-plugin.json"
CASES: list[Case] = json.loads(VECTORS.read_text())["cases"]
SERVED = [case for case in CASES if "fails" not in case]
REFUSED = [case for case in CASES if "fails" in case]
DIRECTORIES = ("/tmp/gdpdev/dev/serial",)
LINKS = {"/tmp/gdpdev/dev/link": "ttyACM0"}


def named(case: Case) -> str:
    return case["case"]


def nodes(case: Case) -> set[str]:
    """Every path of the host that the peer handed out."""
    return {
        given["host_path"]
        for answer in case["answers"].values()
        for given in (*answer.get("devices", []), *answer.get("mounts", []))
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The machine that the peer ran on: all nodes of all cases, each a plain file, as they were there."""
    for path in sorted(set().union(*map(nodes, SERVED))):
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if path in LINKS:
            place.symlink_to(LINKS[path])
        elif path in DIRECTORIES:
            place.mkdir()
        else:
            place.touch()
    return tmp_path


def imported(case: Case) -> str:
    """What `plugwright import` makes of the peer's file."""
    arguments = ["import", "--from", "gdp", "--domain", "lab.io", "-"]
    result = CliRunner().invoke(cli, arguments, input=json.dumps(case["config"]))
    if result.exception:
        raise result.exception
    return result.stdout


def plugin(case: Case, root: Path) -> Plugin:
    text = f"{imported(case)}host: {{root: {root}}}\n"
    [only] = schema.read("imported", text).plugins()
    return only


async def listed(plugin: Plugin) -> list[Device]:
    async with aclosing(plugin.discover()) as lists:  # type: ignore[type-var]
        return list(await anext(lists))  # type: ignore[call-overload]


def as_the_peer_writes_it(answer: Allocation) -> dict[str, Any]:
    devices = [
        {"container_path": node.container_path, "host_path": node.host_path, "permissions": node.permissions}
        for node in answer.nodes
    ]
    mounts = [
        {"container_path": mount.container_path, "host_path": mount.host_path}
        | ({"read_only": True} if mount.read_only else {})
        for mount in answer.mounts
    ]
    assert (answer.env, answer.annotations, answer.cdi) == ({}, {}, ())
    return {key: found for key, found in (("devices", devices), ("mounts", mounts)) if found}


@pytest.mark.parametrize("case", SERVED, ids=named)
async def test_names_ids_and_health_are_the_same(case: Case, root: Path) -> None:
    served = plugin(case, root)
    assert served.resource == case["resource"]
    found = [{"ID": device.id, "health": device.health.value} for device in await listed(served)]
    assert sorted(found, key=lambda device: device["ID"]) == case["devices"]


@pytest.mark.parametrize("case", [case for case in SERVED if case["answers"]], ids=named)
async def test_each_device_is_handed_out_in_the_same_way(case: Case, root: Path) -> None:
    served = plugin(case, root)
    for device in await listed(served):
        answer = await served.allocate([device])  # type: ignore[misc]
        assert as_the_peer_writes_it(answer) == case["answers"][device.id]


@pytest.mark.parametrize("case", REFUSED, ids=named)
def test_a_file_that_ends_the_peer_is_refused(case: Case) -> None:
    with pytest.raises(ConfigError, match=r"stdin:1: devices\[0\].name: name must be two or more of a-z"):
        imported(case)


def test_every_case_is_covered() -> None:
    assert len(SERVED) + len(REFUSED) == len(CASES) == 15
    assert len(set().union(*map(nodes, SERVED))) == 13
