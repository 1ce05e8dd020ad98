"""docs/health.md lists every code that our own plugins give, and no others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTED = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs/health.md").read_text(), re.MULTILINE))


def codes(tree: ast.AST) -> Iterator[str]:
    """The codes in arguments `code`, second arguments of `unhealthy`, and what functions and names called so have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (code for keyword in node.keywords if keyword.arg == "code" for code in texts(keyword.value))
            if isinstance(node.func, ast.Attribute) and node.func.attr == "unhealthy":
                yield from (code for argument in node.args[1:2] for code in texts(argument))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id.lower().strip("_").startswith("code"):
                yield from texts(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name.endswith("_code"):
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
            yield from (code for value in returned for code in texts(value))


def texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from (*texts(value.body), *texts(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (text for part in value.values for text in texts(part))


def test_every_code_is_listed_and_every_listed_code_is_given() -> None:
    files = [*(ROOT / "src/plugwright/plugins").rglob("*.py"), *(ROOT / "src/plugwright/sdk").glob("*.py")]
    given = {code for path in files for code in codes(ast.parse(path.read_text()))}
    assert given | {"xid-79", "sxid-20034", "other"} == LISTED
