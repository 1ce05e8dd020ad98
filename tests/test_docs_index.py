"""The start page of the documentation site lists every page once."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "index.md"


def test_every_page_is_in_one_table_of_contents() -> None:
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", INDEX.read_text(), re.MULTILINE | re.DOTALL)
    listed = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    pages = {path.stem for path in INDEX.parent.glob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages | {"../CHANGELOG", "../CONTRIBUTING", "../SECURITY"})
