"""`plugwright run MODULE:CLASS`: a plugin of one's own has all that plugwright's own have."""

import json
from pathlib import Path

import pytest
from tests.cli.processes import Node, ended, python, running
from tests.observed_kubelet import ObservedKubelet

TAPE = """
import drives
from plugwright import Device, Plugin, PluginError, run

class Tape(Plugin):
    resource = "example.com/tape"

    def discover(self):
        return [Device(name) for name in drives.NAMES]

    def command(self, name, arguments):
        if name != "eject":
            raise PluginError(f"no command {name!r}")
        return f"ejected {arguments['drive']}"
"""
OTHERS = {
    "several": f"{TAPE}\nclass Other(Tape): pass",
    "none": "import plugwright",
    "raising": "values = {}\n\ndef look():\n    return values['temp']\n\nlook()",
    "syntax": "def (",
    "importing": "import no_such_library",
    "needing": f"{TAPE}\n    def __init__(self, drive): pass",
    "calling": f"{TAPE}\nclass Other(Tape):\n    resource = 'example.com/other'\nrun(Tape(), Other())",
    "ending": "raise SystemExit('no licence')",
}
ERRORS = {
    "tape.py:Tap": "tape.py has no 'Tap' (it has: Tape)",
    "tape.py:drives": "tape.py:drives must be a subclass of plugwright.Plugin or an instance of one, got <module",
    "nowhere.py": "plugin must be FILE.py:CLASS or MODULE:CLASS, got 'nowhere.py', which is no file",
    "nowhere:Tape": "plugin must be FILE.py:CLASS or MODULE:CLASS, got 'nowhere', which is no module",
    "several.py": "several.py has several plugins, choose one as several.py:Tape (it has: Tape, Other)",
    "none.py": "none.py must define a subclass of plugwright.Plugin, got none",
    "raising.py": "raising.py cannot be loaded: KeyError: 'temp' at raising.py:4 in look",
    "syntax.py": "syntax.py cannot be loaded: invalid syntax at syntax.py:1",
    "importing.py": "importing.py cannot be loaded: ModuleNotFoundError: No module named 'no_such_library' at ",
    "needing.py": "__init__() of needing.py failed: TypeError: ",
    "ending.py": "ending.py cannot be loaded: SystemExit: no licence at ending.py:1",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "drives.py").write_text("NAMES = ['st0', 'st1']")
    for name, code in {"tape": TAPE, **OTHERS}.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


@pytest.mark.parametrize(("target", "line"), ERRORS.items())
async def test_a_plugin_that_cannot_be_loaded_is_one_line(target: str, line: str, project: Path) -> None:
    command = f"import os, sys; os.chdir({str(project)!r}); sys.argv = ['plugwright', 'run', {target!r}, '--check']; "
    done = await ended(python("-c", command + "from plugwright.cli.main import main; main()"))
    assert done.code == 1
    assert done.err.startswith(f"plugwright: {line}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("target", ["tape.py", "tape.py:Tape"])
async def test_a_plugin_is_checked_without_being_served(target: str, project: Path) -> None:
    done = await ended(python("-m", "plugwright", "run", project / target, "--check"))
    assert (done.code, done.out) == (0, "Tape: example.com/tape, valid\n")


async def test_a_file_that_calls_run_names_its_plugins(project: Path) -> None:
    done = await ended(python("-m", "plugwright", "run", project / "calling.py", "--check"))
    assert done.out.splitlines() == ["Tape: example.com/tape, valid", "Other: example.com/other, valid"]


async def test_a_plugin_and_a_file_are_not_served_together(project: Path) -> None:
    done = await ended(python("-m", "plugwright", "run", project / "tape.py", "-c", "plugwright.yaml"))
    assert done.code == 2
    assert "plugins are served without a file" in done.err


async def test_a_plugin_of_ones_own_has_status_cordons_and_commands(kubelet: ObservedKubelet, project: Path) -> None:
    node = Node(kubelet.paths.root)
    places = ["--kubelet-dir", node.root, "--state-dir", node.state, "--control-socket", node.control]
    async with running(python("-m", "plugwright", "run", f"{project / 'tape.py'}:Tape", *places)) as daemon:
        await daemon.err.until("registered")
        tape = await kubelet.endpoint("example.com/tape", count=2)
        assert sorted(tape.devices) == ["st0", "st1"]
        assert (await node.ask("cordon", "example.com/tape", "st0", "--reason", "dust")).code == 0
        status = json.loads((await node.ask("status", "-o", "json")).out)
        assert [device["reason"] for device in status["resources"][0]["devices"]] == ["cordoned: dust", ""]
        assert (await node.ask("command", "example.com/tape", "eject", "drive=st0")).out == "ejected st0\n"
        refused = await node.ask("command", "example.com/tape", "rewind")
        assert (refused.code, refused.err) == (1, "plugwright: no command 'rewind'\n")
        assert (await node.ask("command", "example.com/tape", "eject", "st0")).code == 2


@pytest.mark.parametrize("order", [("{file}", "--check"), ("--check", "{file}:Tape"), ("--check", "{file}")])
async def test_a_plugin_may_use_every_module_of_python(order: tuple[str, ...], project: Path) -> None:
    (project / "secure.py").write_text(f"import asyncio.sslproto, bz2, lzma, ssl\nassert asyncio.sslproto.ssl\n{TAPE}")
    arguments = [word.format(file=project / "secure.py") for word in order]
    done = await ended(python("-m", "plugwright", "run", *arguments))
    assert (done.code, done.out) == (0, "Tape: example.com/tape, valid\n"), done.err


async def test_serve_is_for_a_plugin_of_ones_own() -> None:
    done = await ended(python("-m", "plugwright", "run", "--serve", "dra"))
    assert done.code == 2
    assert "in the file it is the key `serve` of a resource" in done.err


async def test_a_driver_that_does_not_know_its_node_says_so_in_one_line(project: Path, root: Path) -> None:
    node = Node(root)
    places = ["--kubelet-dir", root, "--state-dir", node.state, "--control-socket", node.control]
    command = python("-m", "plugwright", "run", project / "tape.py", "--serve", "dra", *places)
    async with running(command, {"NODE_NAME": ""}) as daemon:
        line = await daemon.err.until("DRA driver cannot start")
        assert "the name of this node is not known: set NODE_NAME or --node-name" in line
        [resource] = json.loads((await node.ask("status", "-o", "json")).out)["resources"]
        assert (resource["serve"], resource["state"]) == ("dra", "failed")
