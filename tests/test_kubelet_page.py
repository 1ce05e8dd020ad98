"""What docs/kubelet.md shows works as it is written there, and what it lists is all there is."""

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.testing.projects import PYTEST

from plugwright.cli.kubelet import kubelet

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "kubelet.md").read_text()
PLUGIN, TEST, MENDED, PROCESS, LIBRARY, CLOCK, FINDING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[INI] = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
MISTAKE = next(line for line in PLUGIN.splitlines(keepends=True) if "Allocation(nodes" in line)
GOOD = PLUGIN.replace(MISTAKE, MENDED)


def outcome(project: Path, **tests: str) -> str:
    """What pytest says in a project of its own."""
    (project / "pytest.ini").write_text(INI)
    for name, text in tests.items():
        (project / f"{name}.py").write_text(text)
    return subprocess.run(PYTEST, cwd=project, capture_output=True, text=True, timeout=120, check=False).stdout


def test_the_first_test_is_red(tmp_path: Path) -> None:
    assert "1 failed, 1 passed" in outcome(tmp_path, tape=PLUGIN, test_tape=TEST)


def test_the_line_that_is_mended_makes_it_green(tmp_path: Path) -> None:
    assert "2 passed" in outcome(tmp_path, tape=GOOD, test_tape=TEST)


def test_the_other_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert "3 passed" in outcome(tmp_path, tape=GOOD, test_process=PROCESS, test_clock=CLOCK, test_finding=FINDING)


async def test_the_library_does_what_the_page_says(tmp_path: Path, root: Path) -> None:
    (tmp_path / "tape.py").write_text(GOOD)
    patient = LIBRARY.replace(
        "KubeletSettings(", "KubeletSettings(timeout=60, "
    )  # two interpreters start, perhaps slowly
    (tmp_path / "library.py").write_text(patient)
    where = {**os.environ, "PLUGWRIGHT_KUBELET_DIR": str(root)}
    library = await asyncio.create_subprocess_exec(
        sys.executable, "library.py", str(root), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    plugin = await asyncio.create_subprocess_exec(sys.executable, "tape.py", cwd=tmp_path, env=where)
    try:
        out, _ = await library.communicate()
    finally:
        plugin.terminate()
        await plugin.wait()
    shown = PAGE.partition("it prints\n\n")[2].partition("\n\n")[0]
    assert out.decode().splitlines() == [line.strip() for line in shown.splitlines()]


def test_every_finding_is_in_the_table() -> None:
    table = re.findall(
        r"^\| \[(\d+\.\d+)\]\(kubelet-behaviour\.md#\1\) \|",
        PAGE.partition("| fact |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
    reported = {
        node.value
        for path in (ROOT / "src" / "plugwright" / "kubelet").rglob("*.py")
        if path.name != "versions.py"  # there they are versions
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\d+\.\d+", node.value)
    }
    assert sorted(table) == sorted(reported)


@pytest.mark.parametrize("flag", ["--pods", "--timeout", "--once", "--run", "--strict", "--version", "--policy"])
def test_the_flags_of_the_page_are_those_of_the_program(flag: str) -> None:
    assert f"`{flag}" in PAGE
    assert any(flag in option.opts for option in kubelet.params)
