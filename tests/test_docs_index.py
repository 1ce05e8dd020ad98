"""The start page of the documentation site lists every page once, those that are generated from the code too."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "index.md"
TOP = {f"../{name}" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "MAINTAINERS", "ROADMAP", "SECURITY")}
CAPTIONS = ["Start", "Tutorials", "How-to", "Reference", "Explanation", "Project"]


def test_every_page_is_in_one_table_of_contents() -> None:
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", INDEX.read_text(), re.MULTILINE | re.DOTALL)
    listed = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    written = [line for line in listed if not line.startswith("../reference/")]  # see test_reference.py
    pages = {path.stem for path in INDEX.parent.glob("*.md")} - {"index"}
    assert sorted(written) == sorted(pages | TOP)
    assert re.findall(r"^:caption: (.*)$", INDEX.read_text(), re.MULTILINE) == CAPTIONS
