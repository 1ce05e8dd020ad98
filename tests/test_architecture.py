"""docs/architecture.md: its picture is import-linter's contract, and the files it names exist."""

import ast
import re
import tomllib
from pathlib import Path

from plugwright.config.families import BUILT_IN

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "plugwright"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def drawn_layers() -> list[set[str]]:
    """From top to bottom; packages of one layer have a bar between them, and two spaces end them."""
    [picture] = re.findall(r"^## Layers\n.*?```\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
    rows = [row for row in picture.splitlines() if row.strip(" │")]
    return [set(re.split(r"\s{2,}", row)[0].split(" | ")) for row in rows]


def named_files() -> set[str]:
    return set(re.findall(r"`([\w./-]+/[\w.-]+\.\w+|\w+\.(?:py|toml))`", TEXT))


def test_the_picture_shows_the_layers_of_the_contract() -> None:
    [contract] = [contract for contract in CONTRACTS if contract["type"] == "layers"]
    layers = [{name.removeprefix("plugwright.") for name in layer.split(" | ")} for layer in contract["layers"]]
    assert drawn_layers() == layers


def test_every_package_is_in_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set().union(*drawn_layers())


def test_every_package_has_a_place_to_begin_reading() -> None:
    [table] = re.findall(r"^## The tree.*?(^\|.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert rows == {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"kube"}  # one module


def test_the_two_halves_are_held_apart_as_the_page_says() -> None:
    forbidden = {
        (source.removeprefix("plugwright."), target.removeprefix("plugwright."))
        for contract in CONTRACTS
        if contract["type"] == "forbidden"
        for source in contract["source_modules"]
        for target in contract["forbidden_modules"]
    }
    assert {("kubelet", "sdk"), ("kubelet", "plugins"), ("plugins", "protocol")} <= forbidden


def test_families_of_ordinary_devices_do_not_import_each_other() -> None:
    modules = {target.partition(":")[0] for target in BUILT_IN.values() if ".generic." in target}
    groups = "plugwright.plugins.generic.groups"  # combines paths and USB devices
    for module in modules - {groups}:
        source = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
        imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
        assert not imported & modules, module


def test_files_that_are_named_exist() -> None:
    files = named_files()
    assert len(files) > 60
    assert not [path for path in files if not (PACKAGE / path).exists() and not (ROOT / path).exists()]


def test_there_are_fifteen_changes() -> None:
    changes = TEXT.partition("## Fifteen changes")[2]
    assert re.findall(r"^\| (\d+) \|", changes, re.MULTILINE) == [str(number) for number in range(1, 16)]


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == anchors
