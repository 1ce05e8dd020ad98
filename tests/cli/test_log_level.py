"""`plugwright log-level`: another level for a while, in a daemon that goes on."""

import json
import os
import pwd

import pytest
from tests.cli.processes import Ended, Node
from tests.observed_kubelet import ObservedKubelet


@pytest.fixture
def node(kubelet: ObservedKubelet) -> Node:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 1})
    return node


async def test_the_level_changes_and_comes_back_by_itself(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon("--log-format", "json") as daemon:
        await kubelet.endpoint("mock/gpu", 1)
        assert (await node.ask("log-level")).out == "info\n"
        done = await node.ask("log-level", "debug", "--for", "1h", "--by", "alice")
        assert (done.code, done.out) == (0, "debug, and info again in 3600 s\n")
        line = json.loads(await daemon.err.until("log level changed"))
        user = pwd.getpwuid(os.geteuid()).pw_name
        assert line["by"].startswith(f"alice, as {user} (uid {os.geteuid()}, pid ")
        assert (line["level"], line["seconds"]) == ("debug", 3600)
        await node.ask("log-level", "error", "--for", "0.1s")
        assert json.loads(await daemon.err.until("log level changed", 2))["level"] == "error"
        assert json.loads(await daemon.err.until("log level restored"))["level"] == "info"
        assert (await node.ask("log-level")).out == "info\n"


async def test_the_level_that_was_there_before_ends_the_change(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon() as daemon:
        await kubelet.endpoint("mock/gpu", 1)
        await node.ask("log-level", "debug")
        assert (await node.ask("log-level", "info")).out == "info\n"
    assert not [line for line in daemon.err.all if "log level restored" in line]


async def test_a_level_that_does_not_exist_is_a_wrong_call(node: Node) -> None:
    done = await node.ask("log-level", "chatty")
    assert (done.code, done.out) == (2, "")
    assert "'chatty' is not one of 'debug', 'info', 'warning', 'error'" in done.err


async def test_a_change_without_an_end_is_refused(kubelet: ObservedKubelet, node: Node) -> None:
    async with node.daemon():
        await kubelet.endpoint("mock/gpu", 1)
        done = await node.ask("log-level", "debug", "--for", "31d")
        assert done == Ended(1, "", "plugwright: a log level changes for up to 30 days, got 2678400 s\n")
