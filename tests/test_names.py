"""One name means one thing: no class name and no module name of src/plugwright is used twice.

The exceptions are modules that are the same thing in several packages, each with its reason.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "plugwright"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))
Named = Iterable[tuple[str, str]]

CLASSES: Mapping[str, str] = {}
STEMS: Mapping[str, str] = {
    "__init__": "every package has one",
    "allocation": "what a container gets: decided by the device manager, answered by each plugin",
    "cdi": "each plugin's CDI specs",
    "checkpoint": "the file's format, the device manager's use of it, and the command that reads it",
    "health": "each plugin's rules for when a device is unhealthy",
    "metrics": "what the daemon counts, and what the emulated kubelet counts under the real one's names",
    "plugin": "what an author subclasses, and each ready-made plugin",
    "pod_resources": "the service on the wire, and the emulated kubelet's implementation",
    "processes": "child processes; the containers and the plugins under test that are such",
    "registration": "the service on the wire, and both sides' use of it",
    # a command's module has the command's name, whatever it shows
    "mock": "the plugin, and the command for its devices",
    "run": "run() for a plugin author, and the command for an operator",
    "status": "the daemon's status, and the command that prints it",
    # a command that is a program has the same parts as the other one
    "command": "the flags of `kubelet` and of `up`",
    "program": "what `kubelet` and `up` run",
    "view": "what `kubelet` and `up` print",
}


def modules() -> Named:
    for path in MODULES:
        yield path.stem, str(path.relative_to(PACKAGE))


def classes() -> Named:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def used_twice(named: Named) -> dict[str, list[str]]:
    locations: dict[str, list[str]] = defaultdict(list)
    for name, location in named:
        locations[name].append(location)
    return {name: several for name, several in locations.items() if len(several) > 1}


def lines(names: Mapping[str, list[str]]) -> str:
    return "".join(f"\n  {name}: {', '.join(locations)}" for name, locations in sorted(names.items()))


def test_a_class_name_is_used_once() -> None:
    twice = {name: locations for name, locations in used_twice(classes()).items() if name not in CLASSES}
    assert not twice, f"used for several classes:{lines(twice)}"


def test_a_module_name_is_used_once() -> None:
    twice = {name: locations for name, locations in used_twice(modules()).items() if name not in STEMS}
    assert not twice, f"used for several modules:{lines(twice)}"


def test_every_exception_is_still_one() -> None:
    assert not CLASSES.keys() - used_twice(classes())
    assert not STEMS.keys() - used_twice(modules())
