"""`status --watch` and `devices --watch` on a terminal and in a pipe: what is drawn follows what happens."""

import asyncio
import fcntl
import json
import os
import re
import struct
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import lightkube
import pytest
from lightkube.resources.core_v1 import Pod
from tests.cli.processes import python, running
from tests.cluster.up.clusters import RuntimeDirectory, pod

CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
HELD = re.compile(r"held +default/two/main")
COLOURS = re.compile(r"\x1b\[[0-9;]+m")


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": "", "TERM": "xterm-256color"}
    (tmp_path / "plugwright.yaml").write_text("resources: [{name: mock/gpu, mock: {count: 3}}]")
    return runtime


class Terminal:
    """What a program has drawn on a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self.text, self.has_ended = "", False
        self._descriptor, self._news = descriptor, asyncio.Event()

    def read(self) -> None:
        try:
            self.text += os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self.has_ended = True
        self._news.set()

    @property
    def screen(self) -> str:
        """The last whole picture, without its colours."""
        pictures = self.text.split("as of ")
        return CONTROLS.sub("", pictures[-2] if len(pictures) > 1 else "")

    async def lines(self) -> list[str]:
        """Everything that the program has printed when it has ended, without colours."""
        async with asyncio.timeout(40):
            while not self.has_ended:
                self._news.clear()
                await self._news.wait()
        return CONTROLS.sub("", self.text).splitlines()

    async def prints(self, text: str) -> None:
        async with asyncio.timeout(40):
            while text not in self.text:
                self._news.clear()
                await self._news.wait()

    async def shows(self, fact: Callable[[str], bool]) -> None:
        async with asyncio.timeout(40):
            while not fact(self.screen):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def on_terminal(
    environment: Mapping[str, str], *arguments: object, columns: int = 150, lines: int = 40
) -> AsyncIterator[Terminal]:
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    terminal = Terminal(main)
    environment = {**os.environ, **environment, "COLUMNS": str(columns), "LINES": str(lines)}
    process = await asyncio.create_subprocess_exec(
        *python("-m", "plugwright", *arguments), stdin=side, stdout=side, stderr=side, env=environment
    )
    os.close(side)
    asyncio.get_running_loop().add_reader(main, terminal.read)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        asyncio.get_running_loop().remove_reader(main)
        os.close(main)


def create(api: lightkube.Client, name: str, count: str) -> None:
    api.create(pod(name, gpu=count))


async def test_the_view_of_a_cluster_follows_pods_devices_and_waiting_pods(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    async with runtime.up("-c", tmp_path / "plugwright.yaml") as up:
        async with on_terminal(runtime.environment, "devices", "--watch") as terminal:
            await terminal.shows(lambda screen: "node-1  mock/gpu  ..." in screen)
            with up.client as api:
                create(api, "two", "2")
                await terminal.shows(lambda screen: len(HELD.findall(screen)) == 2)
                create(api, "big", "3")
                await terminal.shows(lambda screen: "default/big waits" in screen and "1 waiting" in screen)
                await runtime.ask("mock", "fail", "2", "--reason", "\x1b]0;owned\x07 hot\u202e")
                await terminal.shows(lambda screen: "mock/gpu  HHU" in screen)
                assert "\\x1b]0;owned\\x07 hot\\u202e" in terminal.screen
                assert "\x1b]0;" not in terminal.text
                await terminal.shows(lambda screen: "allocated to default/two" in screen)
                api.delete(Pod, "two", namespace="default", grace_period=0)
                api.delete(Pod, "big", namespace="default", grace_period=0)
            await terminal.shows(lambda screen: not HELD.search(screen) and "mock/gpu  ..U" in screen)
        assert COLOURS.search(terminal.text)


async def test_the_view_of_a_node_drops_a_pod_that_has_ended(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    runtime.environment["NO_COLOR"] = "1"
    async with runtime.up("-c", tmp_path / "plugwright.yaml") as up:
        async with on_terminal(runtime.environment, "status", "--watch") as terminal:
            await terminal.shows(lambda screen: "mock/gpu  registered" in screen and "default/two" not in screen)
            with up.client as api:
                create(api, "two", "2")
                await terminal.shows(lambda screen: screen.partition("last events")[0].count("default/two") == 2)
                api.delete(Pod, "two", namespace="default", grace_period=0)
            await terminal.shows(
                lambda screen: "mock/gpu" in screen and "default/two" not in screen.partition("last events")[0]
            )
        assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", terminal.text)


async def test_in_a_pipe_the_view_of_a_cluster_is_plain_lines_after_each_change(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    async with runtime.up("-c", tmp_path / "plugwright.yaml"):
        command = python("-m", "plugwright", "devices", "--watch")
        async with running(command, runtime.environment) as watching:
            await watching.out.until("node-1  mock/gpu  ...")
            await runtime.ask("mock", "fail", "0", "--reason", "hot")
            await watching.out.until("node-1  mock/gpu  U..")
            watching.process.terminate()
        assert not any("\x1b" in line for line in watching.out.all)
        assert sum("mock/gpu  ..." in line for line in watching.out.all) == 1


async def test_a_dumb_terminal_gets_plain_lines_without_escape_codes(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    runtime.environment["TERM"] = "dumb"
    config = tmp_path / "plugwright.yaml"
    async with on_terminal(runtime.environment, "up", "-c", config, "--nodes", 2, columns=80) as banner:
        await banner.prints("Ctrl-C ends it.")
        async with on_terminal(runtime.environment, "devices", "--watch") as devices:
            await devices.prints("node-1  mock/gpu  ...")
            await runtime.ask("mock", "fail", "0", "--reason", "hot", "--node", "node-1")
            await devices.prints("node-1  mock/gpu  U..")
        async with on_terminal(runtime.environment, "doctor", "--root", tmp_path) as doctor:
            await doctor.lines()
    commands = [line.strip() for line in banner.text.splitlines() if line.startswith("    ")]
    assert commands[0].startswith("export KUBECONFIG=")
    assert any(line.startswith("kubectl run two --image=demo") for line in commands)
    assert any(line.endswith("status --node node-1") for line in commands)
    assert re.search(r"^ready after .* 2 nodes with mock/gpu: 3", banner.text, re.MULTILINE)
    for terminal in (banner, devices, doctor):
        assert not re.search(r"\x1b|\r(?!\n)", terminal.text)


async def test_an_event_is_reported_although_nothing_changes_after_it(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    async with runtime.up("-c", tmp_path / "plugwright.yaml"):
        command = python("-m", "plugwright", "status", "--watch", "-o", "json")
        async with running(command, runtime.environment) as watching:
            await watching.out.until('"kind": "NodeReport"')
            await runtime.ask("mock", "fail", "0", "--reason", "hot")
            await watching.out.until('"kind": "health"')
            watching.process.terminate()


async def test_events_and_waiting_pods_stay_on_a_small_terminal(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    (tmp_path / "plugwright.yaml").write_text("resources: [{name: mock/gpu, mock: {count: 30}}]")
    async with runtime.up("--nodes", 12, "-c", tmp_path / "plugwright.yaml") as up:
        with up.client as api:
            for number in range(12):
                create(api, f"pod-{number}", "30")
            create(api, "big", "31")
        async with on_terminal(runtime.environment, "devices", "--watch", lines=24) as terminal:
            facts = (
                "default/big waits",
                "allocated to",
                "8 more rows: plugwright devices",
                "356 more: plugwright devices",
            )
            await terminal.shows(lambda screen: all(fact in screen for fact in facts))
            assert len(terminal.screen.splitlines()) <= 24


@pytest.mark.parametrize("columns", [80, 120])
async def test_tables_fit_a_narrow_terminal(runtime: RuntimeDirectory, tmp_path: Path, columns: int) -> None:
    config = tmp_path / "machines.yaml"
    config.write_text("resources: [{name: mock/gpu, nvidia: {simulate: hgx-h100}}]")
    async with runtime.up("-c", config) as up:
        with up.client as api:
            create(api, "two", "2")
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
        ids = {device["id"] for device in json.loads((await runtime.ask("devices", "-o", "json")).out)["devices"]}
        assert ids <= set((await runtime.ask("devices")).out.split())  # in a pipe
        for command in (["devices"], ["who", "mock/gpu"]):
            async with on_terminal(runtime.environment, *command, columns=columns) as terminal:
                lines = await terminal.lines()
            assert all(len(line) <= columns for line in lines), lines
            assert sum(line.startswith("node-1 ") for line in lines) == len(ids)
            assert sum("default/two/main" in line for line in lines) == 2
            is_cut = any(line.startswith("the terminal is narrow: ids are shortened") for line in lines)
            assert is_cut == (columns == 80 or command == ["devices"])
