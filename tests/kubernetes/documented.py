"""The commands and files of the documentation, so that a test plays what a reader would type."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Page"]

_DOCS = Path(__file__).parents[2] / "docs"
_COMMENT = re.compile(r"\s{2,}#\s.*$")


@dataclass(frozen=True, slots=True)
class Page:
    """One page, by its name in docs/."""

    name: str

    def commands(self, heading: str = "") -> list[str]:
        """The indented lines of a section or the page, without comments; a line that ends with a backslash goes on."""
        text = re.sub(r"^```.*?^```", "", self._section(heading), flags=re.DOTALL | re.MULTILINE)
        lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
        joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
        return [_COMMENT.sub("", line) for line in joined.splitlines()]

    def command(self, heading: str, beginning: str) -> str:
        """The one command of a section that begins so."""
        found = [command for command in self.commands(heading) if command.startswith(beginning)]
        assert len(found) == 1, f"docs/{self.name}, {heading}: {len(found)} commands begin with {beginning!r}"
        return found[0]

    def yaml(self, heading: str) -> str:
        """The first YAML block of a section."""
        found = re.search(r"^```yaml\n(.*?)^```", self._section(heading), re.DOTALL | re.MULTILINE)
        assert found, f"docs/{self.name}, {heading}: no YAML"
        return found[1]

    def _section(self, heading: str) -> str:
        """Up to the next heading of any level; without a heading, the page."""
        text = (_DOCS / self.name).read_text()
        if not heading:
            return text
        found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text, re.DOTALL | re.MULTILINE)
        assert found, f"docs/{self.name} has no section {heading!r}"
        return found[1]
