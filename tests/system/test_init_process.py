"""A daemon in a container: orphans are reaped, signals arrive, and the exit code is the daemon's."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.processes import Node, Running, python, running

CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
ORPHAN = """#!/bin/sh
env -i PATH="$PATH" setsid sh -c 'sleep 0.1; echo x >> {0}' &  # without the variable by which the daemon finds strays
sleep 0.05  # until it is in a session of its own
"""


@pytest.fixture
def container() -> list[str]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces")
    return CONTAINER


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def states(pid: int) -> list[str]:
    """Of the descendants: R, S, Z and so on."""
    found = []
    for each in descendants(pid):
        try:
            found.append(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def until_many(path: Path, lines: int) -> None:
    async with asyncio.timeout(60):
        while not path.exists() or len(path.read_text().splitlines()) < lines:
            await asyncio.sleep(0.01)


async def init_of(daemon: Running) -> int:
    """The first process of the container."""
    return int(Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text())


async def test_orphans_of_health_commands_are_reaped(container: list[str], root: Path) -> None:
    node, marks, script = Node(root), root / "marks", root / "check"
    script.write_text(ORPHAN.format(marks))
    script.chmod(0o755)
    node.config.parent.mkdir()
    checks = {"command": [str(script)], "every": 0.02}
    entry = {"name": "example.com/null", "paths": ["/dev/null"], "health": checks}
    node.config.write_text(json.dumps({"resources": [entry]}))
    async with running([*container, *node.command()]) as daemon:
        await until_many(marks, 30)
        init = await init_of(daemon)
        async with asyncio.timeout(60):
            while states(init).count("Z") > 2:  # one may have ended just now
                await asyncio.sleep(0.01)
        os.kill(init, signal.SIGTERM)
        assert await daemon.ends() == 0


async def test_a_signal_that_stops_ends_the_container_with_code_0(container: list[str], root: Path) -> None:
    node = Node(root)
    node.configure(gpu={"count": 1})
    async with running([*container, *node.command()]) as daemon:
        await daemon.err.until("waiting for the kubelet")
        init = await init_of(daemon)
        os.kill(init, signal.SIGHUP)
        node.configure(gpu={"count": 2})
        await daemon.err.until("configuration reloaded")
        os.kill(init, signal.SIGTERM)
        assert await daemon.ends() == 0


async def test_a_daemon_that_fails_ends_the_container_with_its_code(container: list[str], root: Path) -> None:
    async with running([*container, *Node(root).command("--kubelet-dir", "var")]) as daemon:
        assert await daemon.ends() == 1


async def test_a_killed_daemon_ends_the_container(container: list[str], root: Path) -> None:
    node = Node(root)
    node.configure(gpu={"count": 1})
    async with running([*container, *python("-m", "plugwright", *node.command()[3:])]) as daemon:
        await daemon.err.until("waiting for the kubelet")
        [child, *_] = descendants(await init_of(daemon))
        os.kill(child, signal.SIGKILL)
        assert await daemon.ends() == 128 + signal.SIGKILL
