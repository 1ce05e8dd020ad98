"""The Python code of the documentation passes a type checker as an author's own code does, from outside of the tree.

A block that has annotations is checked as `mypy --strict` does. In one without, everything but the missing annotations
is: each call, name and import. pyright, here in the packaging that brings all it needs from PyPI, checks both.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
MYPY = """
[mypy]
strict = true
[mypy-{untyped}]
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
"""
CACHE = str(ROOT / ".cache" / "mypy-pages")  # our own modules, which the pages import, are checked once
PYRIGHT = {"typeCheckingMode": "standard", "include": ["."]}


def blocks() -> dict[str, str]:
    """Module name → code; a single line that replaces one of another block is no module."""
    found = {}
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text())):
            if block.count("\n") > 1:
                kind = "typed" if "->" in block else "untyped"
                found[f"{kind}_{page.stem.lower().replace('-', '_')}_{number}"] = block
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for every block; `tape` and `card`, which tests on the pages import, are plugins of the same pages."""
    directory = tmp_path_factory.mktemp("pages")
    written = blocks()
    imported = {"tape": written["untyped_kubelet_0"], "card": written["typed_authors_0"]}
    for name, code in {**written, **imported}.items():
        (directory / f"{name}.py").write_text(code)
    untyped = ",".join(["tape", *(name for name in written if name.startswith("untyped"))])
    (directory / "mypy.ini").write_text(MYPY.format(untyped=untyped))
    (directory / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return directory


def output(project: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=project, capture_output=True, text=True, timeout=110, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_page_with_code_is_checked() -> None:
    assert len(blocks()) > 18
    assert any(name.startswith("typed_sdk") for name in blocks())


def test_the_documented_code_passes_mypy_strict(project: Path) -> None:
    assert output(project, "mypy", "--cache-dir", CACHE, "--config-file", "mypy.ini", ".") == ""


def test_the_documented_code_passes_pyright(project: Path) -> None:
    assert output(project, "basedpyright", "--pythonpath", sys.executable) == ""
