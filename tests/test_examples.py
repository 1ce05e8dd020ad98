"""What the README and the examples show works as it is written there."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin
from tests.testing.projects import PYTEST

from plugwright import Allocation, Registration, Settings, serving
from tiny_kubelet import TinyKubelet

ROOT = Path(__file__).parent.parent


async def test_the_plugin_of_the_readme_runs_as_written(kubelet: ObservedKubelet, root: Path, tmp_path: Path) -> None:
    script = tmp_path / "tape.py"
    script.write_text(_first_python_block("README.md"))
    environment = {**os.environ, "PLUGWRIGHT_KUBELET_DIR": str(root)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), env=environment)
    tape = await kubelet.endpoint("example.com/tape", count=2)
    [answer] = await tape.client.allocate(["st0"])
    process.terminate()
    assert [node.host_path for node in answer.nodes] == ["/dev/st0"]
    assert await process.wait() == 0


@pytest.mark.parametrize("way", Registration)
async def test_the_tiny_kubelet_registers_lists_and_allocates(
    tiny_kubelet: TinyKubelet, settings: Settings, way: Registration
) -> None:
    plugin = ListingPlugin()
    async with serving(plugin, settings=replace(settings, registration=way)):
        tape = await tiny_kubelet.endpoint(TAPE, count=2)
        assert await tape.client.allocate(["st0"], ["st1"]) == [Allocation(env={"SHELF": TAPE})] * 2
        plugin.ids.publish(("st0", "st1", "st2"))
        await tiny_kubelet.health(TAPE, "st2", "Healthy")
        assert [len(devices) for devices in tape.lists] == [2, 3]
        assert [request.resource for request in tiny_kubelet.registered] == [TAPE]
    await tiny_kubelet.until(lambda _: tape.ended)


async def test_the_tiny_kubelet_refuses_with_the_reason_it_was_given(
    tiny_kubelet: TinyKubelet, settings: Settings
) -> None:
    tiny_kubelet.refuse = "not today"
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await daemon.resources[TAPE].registration.status.until(lambda status: "not today" in status.reason)
        tiny_kubelet.refuse = ""
        await tiny_kubelet.endpoint(TAPE, count=2)


async def test_the_tiny_kubelet_finds_its_plugins_after_a_restart(
    tiny_kubelet: TinyKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings):
        await tiny_kubelet.endpoint(TAPE, count=2)
        await tiny_kubelet.restart()
        await tiny_kubelet.endpoint(TAPE, count=2)
    assert len(tiny_kubelet.registered) == 2


def test_the_demo_ends_well() -> None:
    demo = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert demo.returncode == 0, demo.stderr
    assert "All steps verified" in demo.stdout
    last = shlex.split(demo.stdout.splitlines()[-1])
    help_text = subprocess.run([*last, "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert help_text.startswith("Usage: plugwright up")


def is_served(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def test_ctrl_c_ends_the_demo_and_its_cluster_without_a_traceback() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "examples/demo.py"], cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as demo:
        assert demo.stdout is not None
        while "A cluster" not in demo.stdout.readline():
            assert demo.poll() is None
        server = urlsplit(demo.stdout.readline().split()[-1])
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (130, "")
    while is_served(server.hostname or "", server.port or 0):
        pass  # the cluster ends by itself


def test_the_tests_of_the_tape_plugin_pass_in_a_project_of_their_own(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples" / "tape", tmp_path / "tape", ignore=shutil.ignore_patterns("__*"))
    tests = subprocess.run(PYTEST, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert tests.returncode == 0, tests.stdout
    assert "7 passed" in tests.stdout


def _first_python_block(page: str) -> str:
    block = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert block is not None
    return block[1]
