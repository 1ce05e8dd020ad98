"""CONTRIBUTING.md's map of the tree is the tree: every package of src/plugwright is in it, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "plugwright"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
[MAP] = re.findall(r"^## Where things are\n\n```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
LINE = re.compile(r"( *)([\w/]+)/(?: +(\S.*))?")


def packages() -> set[str]:
    directories = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    return {str(package.relative_to(ROOT)) for package in directories}


def mapped() -> dict[str, str]:
    """The directories of the map with their lines; the indentation says which is in which."""
    lines: dict[str, str] = {}
    parents: list[str] = []
    for text in MAP.splitlines():
        line = LINE.fullmatch(text)
        assert line, text
        parents = [*parents[: len(line[1]) // 2], line[2]]
        lines["/".join(parents)] = line[3] or ""
    return lines


def test_every_package_is_in_the_map_and_nothing_else() -> None:
    assert {path for path in mapped() if path.startswith("src/plugwright/")} == packages()


def test_every_line_of_the_map_says_something() -> None:
    assert [path for path, line in mapped().items() if not line] == ["src/plugwright"]
    assert max(map(len, MAP.splitlines())) <= 140


def test_every_directory_of_the_map_exists() -> None:
    assert not [path for path in mapped() if not (ROOT / path).is_dir()]


def test_modules_outside_of_packages_are_named() -> None:
    [paragraph] = re.findall(r"^Nine modules belong to no package: (.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__", "version"}
    assert set(re.findall(r"`(\w+)`", paragraph)) == modules


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"[`(]((?:src|docs|tests|\.github|\.ci|protocol|system)/[\w./-]+|\w+\.md)[`)]", TEXT)
    assert len(named) > 8
    assert not [path for path in named if not (ROOT / path).exists() and not (PACKAGE / path).exists()]
