"""The names of `plugwright.testing`: loaded lazily, each from one module."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from tests.test_lean import loaded_by

from plugwright import testing

HEAVY = {"plugwright.kubelet.kubelet", "plugwright.sdk.run", "grpclib", "google.protobuf"}


def names_for_type_checkers() -> dict[str, set[str]]:
    body = ast.parse(Path(testing.__file__).read_text()).body
    [block] = [node for node in body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {node.module or "": {alias.name for alias in node.names} for node in imports}


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    assert names_for_type_checkers() == {home: set(names) for home, names in testing._HOMES.items()}
    assert {name for names in testing._HOMES.values() for name in names} == set(testing.__all__) == set(dir(testing))


@pytest.mark.parametrize("name", testing.__all__)
def test_name_is_that_of_its_module(name: str) -> None:
    [home] = [home for home, names in testing._HOMES.items() if name in names]
    assert getattr(testing, name) is getattr(import_module(home), name)
    assert name in import_module(home).__all__


async def test_submodules_do_not_hide_functions() -> None:
    code = "import plugwright.testing.harness, plugwright.testing.processes\n"
    code += (
        "from plugwright.testing import running, plugin_process\nassert callable(running) and callable(plugin_process)"
    )
    assert "plugwright.testing.harness" in await loaded_by(code)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'plugwright.testing' has no attribute 'runing'"):
        _ = testing.runing


async def test_pytest_plugin_loads_nothing_heavy() -> None:
    modules = await loaded_by("import plugwright.testing.pytest_plugin")
    assert "pytest_asyncio" in modules
    assert not modules & HEAVY
