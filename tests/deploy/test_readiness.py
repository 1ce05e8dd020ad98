"""The chart's readiness probe, as it is rendered, beside a daemon; and the watchdog in place of a liveness probe."""

import sys
from pathlib import Path

import pytest
from tests.cli.processes import Node, ended, python, running
from tests.deploy.rendered import one
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet


def probe(node: Node, wait: int = 55, kind: str = "readinessProbe") -> list[str]:
    (container,) = one("mock", "DaemonSet")["spec"]["template"]["spec"]["containers"]
    program, flags, option, code = container[kind]["exec"]["command"]
    assert (program, flags, option) == ("python", "-IS", "-c")
    code = code.replace("/run/plugwright/control.sock", str(node.control)).replace("+ 55", f"+ {wait}")
    return [sys.executable, flags, option, code]


@pytest.fixture
def node(root: Path) -> Node:
    node = Node(root)
    node.configure(gpu={"count": 2})
    return node


async def test_it_waits_for_a_daemon_and_for_the_kubelet(root: Path, node: Node) -> None:
    kubelet = MisbehavingKubelet(root)
    kubelet.watch_lists = False
    async with running(probe(node)) as waiting, node.daemon() as daemon:
        await daemon.err.until("waiting for the kubelet")
        kubelet.watch_lists = True
        await kubelet.start()
        assert await waiting.ends() == 0
        await kubelet.stop()
    assert waiting.out.all == ['{"ok": "ready"}']


async def test_it_says_what_is_missing(node: Node) -> None:
    async with node.daemon() as daemon:
        await daemon.err.until("waiting for the kubelet")
        done = await ended(probe(node, wait=1))
        assert done.code == 1
        assert "mock/gpu: waiting no kubelet.sock" in done.out


async def test_without_a_daemon_the_answer_is_no(node: Node) -> None:
    done = await ended(probe(node, wait=0))
    assert (done.code, done.out) == (1, "[Errno 2] No such file or directory")


async def test_the_startup_probe_ends_when_the_daemon_serves(root: Path, node: Node) -> None:
    kubelet = MisbehavingKubelet(root)
    kubelet.watch_lists = False
    async with running(probe(node, kind="startupProbe")) as waiting, node.daemon() as daemon:
        await daemon.err.until("waiting for the kubelet")
        assert waiting.process.returncode is None
        kubelet.watch_lists = True
        await kubelet.start()
        assert await waiting.ends() == 0
        await kubelet.stop()
    assert waiting.out.all == ['{"ok": "ready"}']


async def test_the_startup_probe_restarts_no_daemon_that_has_to_wait(node: Node) -> None:
    assert (await ended(probe(node, wait=0, kind="startupProbe"))).code == 0
    async with node.daemon() as daemon:
        await daemon.err.until("waiting for the kubelet")
        done = await ended(probe(node, wait=1, kind="startupProbe"))
        assert (done.code, "no kubelet.sock" in done.out) == (0, True)


BLOCKING = """
import time
from plugwright import Device, Plugin

class Blocking(Plugin):
    resource = "example.com/blocking"

    async def discover(self):
        yield [Device("a")]
        time.sleep(600)
"""


async def test_a_daemon_that_hangs_ends_itself_with_the_line(node: Node, tmp_path: Path) -> None:
    plugin = tmp_path / "blocking.py"
    plugin.write_text(BLOCKING)
    flags = ("--kubelet-dir", node.root, "--control-socket", node.control, "--state-dir", node.state, "--watchdog", 1)
    async with running(python("-m", "plugwright", "run", f"{plugin}:Blocking", *flags)) as daemon:
        assert await daemon.ends() == 1
    assert any("blocking.py" in line and "in discover" in line for line in daemon.err.all)
