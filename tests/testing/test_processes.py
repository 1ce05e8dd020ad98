"""`plugin_process`: a plugin in any language, started, awaited and ended."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plugwright.errors import ConfigError, PluginError
from plugwright.testing import Kubelet, KubeletSettings, plugin_process, pod_requesting

PROGRAM = Path(__file__).parents[2] / "examples" / "tape" / "tape.py"
TAPE, COMMAND = "example.com/tape", [sys.executable, str(PROGRAM)]

STUBBORN = """
import asyncio, signal, sys
from plugwright import serving

sys.path.insert(0, sys.argv[1])
from tape import Tape

async def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    async with serving(Tape()):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def node(root: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(root / "k", KubeletSettings(timeout=60)) as kubelet:
        yield kubelet


async def test_process_serves_the_kubelet(node: Kubelet) -> None:
    async with plugin_process(node, COMMAND, TAPE) as plugin:
        pod = await node.admit(pod_requesting({TAPE: 1}))
        assert pod.container("main").nodes[0].host_path == "/dev/st0"
        await plugin.until("registered")
    assert plugin.returncode == 0
    assert await node.allocatable(TAPE, count=0) == 0


async def test_process_can_be_stopped_and_another_started(node: Kubelet) -> None:
    async with plugin_process(node, COMMAND, TAPE) as first:
        assert await first.stop(signal.SIGKILL) == -signal.SIGKILL
        await node.allocatable(TAPE, count=0)
        async with plugin_process(node, COMMAND) as second:
            assert await node.allocatable(TAPE) == 2
            assert first.pid != second.pid


async def test_placeholders_are_filled_in(node: Kubelet) -> None:
    command = ["sh", "-c", "echo $0 $WHERE {other}; exit 3", "{dir}|{root}"]
    with pytest.raises(PluginError) as caught:
        async with plugin_process(node, command, env={"WHERE": "{socket}"}):
            pass
    paths = node.paths
    line = f"{paths.device_plugins}|{paths.root} {paths.kubelet_socket} {{other}}"
    assert str(caught.value).endswith(f"ended before it listed any resource, with status 3 ({line})")


async def test_process_that_never_lists_is_an_error_with_its_output(root: Path) -> None:
    async with Kubelet(root / "k", KubeletSettings(timeout=3)) as kubelet:
        with pytest.raises(PluginError, match=f"did not list {TAPE} within 3 s; it wrote 'no drive\\\\n'"):
            async with plugin_process(kubelet, ["sh", "-c", "echo no drive; exec sleep 600"], TAPE):
                pass


async def test_command_that_cannot_be_started_is_named(node: Kubelet) -> None:
    with pytest.raises(ConfigError, match="cannot start `/no/such/plugin`: No such file or directory"):
        async with plugin_process(node, ["/no/such/plugin"]):
            pass


async def test_output_is_written_to_stderr(node: Kubelet, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PluginError):
        async with plugin_process(node, ["sh", "-c", "echo out; echo err >&2"]):
            pass
    assert capsys.readouterr().err == "out\nerr\n"


async def test_children_end_with_the_process(node: Kubelet) -> None:
    with pytest.raises(PluginError) as caught:
        async with plugin_process(node, ["sh", "-c", "sleep 600 & echo child $!"]):
            pass
    child = int(str(caught.value).rpartition("child ")[2].rstrip(")"))
    async with asyncio.timeout(60):
        await _end_of(child)


async def test_process_that_ignores_sigterm_is_killed(node: Kubelet) -> None:
    async with plugin_process(node, [sys.executable, "-c", STUBBORN, PROGRAM.parent], TAPE) as plugin:
        assert await plugin.stop(limit=0.1) == -signal.SIGKILL


async def _end_of(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
