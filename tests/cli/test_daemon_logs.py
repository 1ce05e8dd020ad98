"""What a daemon writes: one record a line, for machines or for people, and no more than asked for."""

import hashlib
import json
import re
from datetime import datetime

import pytest
from tests.cli.processes import Node, configuration, ended
from tests.observed_kubelet import ObservedKubelet

from plugwright.version import __version__


@pytest.fixture
def node(kubelet: ObservedKubelet) -> Node:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 2})
    return node


async def written(kubelet: ObservedKubelet, node: Node, *flags: str) -> list[str]:
    """The log of a daemon that registers, gives out a device, refuses another and reads a bad file."""
    async with node.daemon(*flags) as daemon:
        gpu = await kubelet.endpoint("mock/gpu", 2)
        await gpu.client.allocate(list(gpu.devices))
        bad = node.config.with_name("bad")
        bad.write_text("resources: []\ncuont: 1\n")
        bad.replace(node.config)
        await daemon.err.until("new configuration rejected")
    assert daemon.out.all == []
    return daemon.err.all


async def test_json_is_one_object_a_line(kubelet: ObservedKubelet, node: Node) -> None:
    records = [
        json.loads(line) for line in await written(kubelet, node, "--log-format", "json", "--log-level", "debug")
    ]
    assert {"time", "level", "message"} <= set.intersection(*(set(record) for record in records))
    by_message = {record["message"]: record for record in records}
    gpu = kubelet.endpoints["mock/gpu"]
    registered = by_message["registered"]
    assert (registered["level"], registered["resource"]) == ("info", "mock/gpu")
    assert registered["endpoint"] == gpu.request.endpoint
    assert datetime.fromisoformat(registered["time"]).tzinfo is not None
    assert by_message["allocated"]["devices"] == list(gpu.devices)
    refused = by_message["new configuration rejected, the previous one stays"]
    assert (refused["level"], refused["error"]) == ("error", "plugwright.yaml:2: unknown key 'cuont'")
    assert by_message["stopped"]["level"] == "info"


async def test_a_daemon_that_cannot_start_says_so_in_the_format_of_its_log(node: Node) -> None:
    node.config.write_text("resources: []\ncuont: 1\n")
    error = "plugwright.yaml:2: unknown key 'cuont'"
    done = await ended(node.command("--log-format", "json"))
    [record] = map(json.loads, done.err.splitlines())
    assert (done.code, record["level"], record["message"], record["error"]) == (1, "error", "daemon failed", error)
    done = await ended(node.command())
    assert (done.code, done.err) == (1, f"plugwright: {error}\n")


async def test_the_first_line_names_the_version_the_file_and_the_number_of_resources(
    kubelet: ObservedKubelet, node: Node
) -> None:
    lines = await written(kubelet, node)
    sha256 = hashlib.sha256(configuration(gpu={"count": 2}).encode()).hexdigest()[:12]
    assert lines[0].endswith(f"starting  version={__version__} config={node.config} sha256={sha256} resources=1")


async def test_people_read_a_clock_a_level_a_message_and_facts(kubelet: ObservedKubelet, node: Node) -> None:
    lines = await written(kubelet, node)
    endpoint = kubelet.endpoints["mock/gpu"].request.endpoint
    directory = kubelet.paths.device_plugins
    [registered] = [line for line in lines if "registered" in line]
    shape = rf"\d\d:\d\d:\d\d info    registered  resource=mock/gpu endpoint={endpoint} directory={directory}"
    assert re.fullmatch(shape, registered)


async def test_a_level_leaves_out_what_is_below_it(kubelet: ObservedKubelet, node: Node) -> None:
    lines = await written(kubelet, node, "--log-level", "error", "--log-format", "json")
    assert [json.loads(line)["message"] for line in lines] == ["new configuration rejected, the previous one stays"]
