"""What the README and the examples show works as it is written there."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_kubelet import TinyKubelet

ROOT = Path(__file__).parent.parent


async def test_the_plugin_of_the_readme_runs_as_written(kubelet: TinyKubelet, root: Path, tmp_path: Path) -> None:
    script = tmp_path / "tape.py"
    script.write_text(_first_python_block("README.md"))
    environment = {**os.environ, "PLUGWRIGHT_KUBELET_DIR": str(root)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), env=environment)
    tape = await kubelet.endpoint("example.com/tape", count=2)
    [answer] = await tape.client.allocate(["st0"])
    process.terminate()
    assert [node.host_path for node in answer.nodes] == ["/dev/st0"]
    assert await process.wait() == 0


@pytest.mark.parametrize("page", ["README.md", "docs/cluster.md", "docs/families.md", "docs/sdk.md", "docs/testing.md"])
def test_every_python_block_of_the_docs_is_python(page: str) -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        body = block if not block.startswith((" ", "async with")) else _inside_a_coroutine(block)
        compile(body, page, "exec")


def test_the_demo_ends_well() -> None:
    demo = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert demo.returncode == 0, demo.stderr
    assert "All of it was seen to happen" in demo.stdout


def test_the_tests_of_the_tape_plugin_pass_in_a_project_of_their_own(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples" / "tape", tmp_path / "tape", ignore=shutil.ignore_patterns("__*"))
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout
    assert "5 passed" in tests.stdout


def _first_python_block(page: str) -> str:
    block = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def _inside_a_coroutine(block: str) -> str:
    indented = "\n".join(f"    {line}" for line in block.splitlines())
    return (
        f"async def page():\n    if True:\n{indented}" if block.startswith("    ") else f"async def page():\n{indented}"
    )
