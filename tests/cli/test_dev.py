"""`plugwright dev`: a plugin beside an emulated kubelet, started again with each save that can be loaded."""

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli.processes import Running, ended, python, running

TAPE = """
from plugwright import Allocation, Device, Plugin, run

class Tape(Plugin):
    resource = "example.com/tape"

    def discover(self):
        return [Device(f"st{number}") for number in range(COUNT)]

if __name__ == "__main__":
    run(Tape())
"""
MAIN = '{"name": "main", "resources": {"limits": {"example.com/tape": 1}}}'
POD = f'{{"metadata": {{"name": "backup"}}, "spec": {{"containers": [{MAIN}]}}}}'


def save(file: Path, text: str) -> None:
    """As editors do: a new file in place of the old one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@asynccontextmanager
async def developing(file: Path, root: Path, *arguments: object) -> AsyncIterator[Running]:
    async with running(python("-m", "plugwright", "dev", file, *arguments, "--root", root / "k")) as program:
        yield program
    assert "Traceback" not in "\n".join([*program.err.all, *program.out.all])


async def test_a_plugin_is_started_again_with_each_good_save(tmp_path: Path, root: Path) -> None:
    file, pod = tmp_path / "tape.py", tmp_path / "pod.yaml"
    file.write_text(TAPE.replace("COUNT", "2"))
    pod.write_text(POD)
    async with developing(file, root, pod) as program:
        await program.out.until("example.com/tape: 2 devices, 2 healthy")
        await program.out.until("admitted                 default/backup")
        save(file, "def (")
        line = await program.out.until("not loaded")
        assert "invalid syntax at tape.py:1; the previous version keeps running" in line
        save(file, TAPE.replace("COUNT", "3"))
        await program.out.until("example.com/tape: 3 devices, 3 healthy")
        assert "reloaded" in program.out.all[-1]
        assert "3 devices, 3 healthy (was: 2 devices, 2 healthy)" in program.out.all[-1]


ALLOCATE = """
    def allocate(self, devices):
        return Allocation(env={"TAPE": VALUE})
"""


def with_allocate(value: str) -> str:
    return TAPE.replace("COUNT", "2").replace("\nif __name__", ALLOCATE.replace("VALUE", value) + "\nif __name__")


async def test_a_pod_that_was_refused_is_submitted_again_after_the_fix_is_saved(tmp_path: Path, root: Path) -> None:
    file, pod = tmp_path / "tape.py", tmp_path / "pod.yaml"
    file.write_text(with_allocate("devicez[0].id"))
    pod.write_text(POD)
    async with developing(file, root, pod) as program:
        refusal = await program.out.until("refused                  default/backup")
        assert re.search(r"NameError: name 'devicez' is not defined at tape.py:\d+ in allocate", refusal)
        save(file, with_allocate("devices[0].id"))
        await program.out.until("admitted                 default/backup")
        await program.out.until("env        TAPE=st0")
        save(file, with_allocate("'another'"))
        await program.out.until("reloaded")
        assert len([line for line in program.out.all if "admitted  " in line]) == 1  # a running pod keeps its device


async def test_without_a_pod_file_a_pod_requests_a_device_after_each_save(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "tape.py"
    file.write_text(with_allocate("devices[0].id"))
    async with developing(file, root) as program:
        await program.out.until("admitted                 default/dev-tape")
        await program.out.until("env        TAPE=st0")
        save(file, with_allocate("'another'"))
        await program.out.until("env        TAPE=another")
        await program.out.until("allocated to pod")
        reload = program.out.all[next(n for n, line in enumerate(program.out.all) if "reloaded" in line) :]
        assert "example.com/tape: 2 devices, 2 healthy, as before" in reload[0]
        assert not [line for line in reload if "Register" in line or "ListAndWatch" in line]


async def test_no_pod_is_made_if_none_is_requested(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "tape.py"
    file.write_text(with_allocate("devices[0].id"))
    async with developing(file, root, "--request", "0", "--verbose") as program:
        await program.out.until("2 devices, 2 healthy")
        save(file, with_allocate("'another'"))
        await program.out.until("  loaded  ", count=2)
        await program.out.until("2 devices, 2 healthy", count=2)
        assert not [line for line in program.out.all if "Allocate" in line]


async def test_a_first_save_that_is_bad_is_waited_for(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "tape.py"
    file.write_text(TAPE.replace("resource", "resorce").replace("COUNT", "2"))
    async with developing(file, root) as program:
        line = await program.out.until("not loaded")
        assert "Tape (tape.py:4) must have a resource name" in line
        assert "save it again to start it" in line
        save(file, TAPE.replace("COUNT", "2"))
        await program.out.until("example.com/tape: 2 devices, 2 healthy")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_plugin_too(number: signal.Signals, tmp_path: Path, root: Path) -> None:
    file = tmp_path / "tape.py"
    file.write_text(TAPE.replace("COUNT", "2"))
    async with developing(file, root) as program:
        await program.out.until("2 devices, 2 healthy")
        pid = int((await program.out.until("  loaded  ")).rpartition(" ")[2])
        program.signal(number)
        assert await program.ends() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_plugin_that_ends_by_itself_is_said(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "tape.py"
    ending = "import os\n" + TAPE.replace("        return", "        os._exit(7)\n        return").replace("COUNT", "2")
    file.write_text(ending)
    async with developing(file, root) as program:
        assert "status 7; save the file to start it again" in await program.out.until("ended  ")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nothing.py", "no such file: nothing.py"),
        ("acme.tape:Tape", "plugin must be FILE.py or FILE.py:CLASS, got 'acme.tape:Tape'"),
        ("README.md", "plugin must be FILE.py or FILE.py:CLASS, got 'README.md'"),
    ],
)
async def test_what_is_no_python_file_is_refused(target: str, problem: str) -> None:
    done = await ended(python("-m", "plugwright", "dev", target))
    assert (done.code, done.err.strip()) == (1, f"plugwright: {problem}")
