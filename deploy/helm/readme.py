"""Writes the README.md of the chart from values.yaml, which `helm show readme` and chart registries show.

`make dist` runs it.
A comment above a key, or at the end of its line, describes the key. Keys with the same comment above share it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["main", "rows"]

_CHART = Path(__file__).parent / "plugwright"
_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z][\w./-]*): *(?P<value>.*?)(?: +# (?P<comment>.*))?$")
_INTRODUCTION = """# plugwright

Serves the devices of your nodes to pods, through the Kubernetes device plugin API, through claims (Dynamic Resource
Allocation), or both. Without hardware: `--set mock.enabled=true` offers ten mock GPUs on every node.

    helm install plugwright PACKAGE_OR_DIRECTORY --namespace plugwright --create-namespace --values values.yaml

An unknown value is an error, and a configuration that the daemon would refuse fails the install or upgrade before it
reaches a node. `helm uninstall` removes the resources from the nodes.

## Values
"""


class _Row(NamedTuple):
    key: str
    default: str
    meaning: str


def rows(text: str) -> Iterator[_Row]:
    """Every key that has a value of its own, with its dotted path."""
    path: list[tuple[int, str]] = []
    above: dict[str, str] = {}
    comment: list[str] = []
    pending = ""  # the last key without a value on its line
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
            continue
        found = _KEY.match(line)
        if found is None:
            if line.strip().startswith("- ") and pending:
                yield _Row(pending, "a list, see values.yaml", above[pending])
            comment, pending = [], ""
            continue
        indent = len(found["indent"])
        path = [*((depth, name) for depth, name in path if depth < indent), (indent, found["name"])]
        key = ".".join(name for _, name in path)
        above[key] = " ".join(part for part in comment if part) or above.get(key.rpartition(".")[0], "")
        comment = []
        pending = "" if found["value"] else key
        if found["value"]:
            yield _Row(key, found["value"], found["comment"] or above[key])


def main() -> None:
    lines = [
        f"| `{row.key}` | `{row.default}` | {row.meaning.replace('|', chr(92) + '|')} |" for row in rows(_values())
    ]
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *lines])
    (_CHART / "README.md").write_text(f"{_INTRODUCTION}\n{table}\n")


def _values() -> str:
    return (_CHART / "values.yaml").read_text()


if __name__ == "__main__":
    main()
