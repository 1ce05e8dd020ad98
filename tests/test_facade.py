"""The public names: each one is there, sorted, and loaded from the one home it has."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import plugwright

SOURCE = ast.parse(Path(plugwright.__file__).read_text())


def sorted_as_ruff_does(names: list[str]) -> list[str]:
    """Constants, then classes, then the rest."""
    return sorted(names, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name))


def seen_by_a_type_checker() -> dict[str, set[str]]:
    """The imports of the facade that no interpreter runs: module → names."""
    [block] = [node for node in SOURCE.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {node.module or "": {alias.name for alias in node.names} for node in imports}


def test_the_names_are_sorted_and_stand_once() -> None:
    assert plugwright.__all__ == sorted_as_ruff_does(plugwright.__all__)
    assert len(plugwright.__all__) == len(set(plugwright.__all__))


def test_each_name_has_one_home() -> None:
    homes = [name for names in plugwright._HOMES.values() for name in names]
    assert sorted(homes) == sorted(plugwright.__all__)


def test_a_type_checker_sees_what_the_interpreter_does() -> None:
    assert seen_by_a_type_checker() == {home: set(names) for home, names in plugwright._HOMES.items()}


@pytest.mark.parametrize("name", plugwright.__all__)
def test_each_name_is_what_its_home_says(name: str) -> None:
    [home] = [home for home, names in plugwright._HOMES.items() if name in names]
    assert getattr(plugwright, name) is getattr(import_module(home), name)
    assert name in import_module(home).__all__


def test_dir_shows_the_public_names() -> None:
    assert set(dir(plugwright)) == set(plugwright.__all__)


def test_a_star_import_takes_them_all() -> None:
    namespace: dict[str, object] = {}
    exec("from plugwright import *", namespace)
    assert set(plugwright.__all__) <= set(namespace)


def test_a_name_that_is_none_of_them_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'plugwright' has no attribute 'Divice'"):
        _ = plugwright.Divice


def test_the_plugin_of_the_readme_needs_no_more_than_the_facade() -> None:
    assert {"Allocation", "Device", "Plugin", "run"} <= set(plugwright.__all__)
