"""Selectors and devices which our evaluator and Kubernetes' own must answer alike."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plugwright.allocator.cel import CelDevice, SelectorError, SelectorTooCostly, compile_selector, version

__all__ = ["DEVICES", "EXPRESSIONS", "RECORDED", "answers_of", "asked", "compared", "device_of"]

EXPRESSIONS = (Path(__file__).parent / "selectors.txt").read_text().splitlines()
RECORDED = Path(__file__).parent / "selectors.json"
LIMIT = 1_000_000

DEVICES: list[dict[str, Any]] = [
    {
        "driver": "gpu.example.com",
        "attributes": {
            "model": {"string": "A100"},
            "index": {"int": 3},
            "shared": {"bool": True},
            "driverVersion": {"version": "535.104.5"},
            "other.example.com/rack": {"string": "r1"},
        },
        "capacity": {"memory": {"value": "40Gi"}},
        "allowMultipleAllocations": True,
    },
    {
        "driver": "gpu.example.com",
        "attributes": {"model": {"string": "H100"}, "index": {"int": -1}, "driverVersion": {"version": "1.0.0-rc.1"}},
        "capacity": {"memory": {"value": "80Gi"}, "slots": {"value": "7"}},
    },
    {"driver": "nic.example.com", "attributes": {"gpu.example.com/model": {"bool": False}}},
    {"driver": "gpu.example.com"},
]

_READ: dict[str, Callable[[Any], object]] = {"string": str, "int": int, "bool": bool, "version": version}


def device_of(described: dict[str, Any]) -> CelDevice:
    """The device as selectors see it."""
    driver = described["driver"]
    attributes: dict[str, dict[str, object]] = {}
    capacity: dict[str, dict[str, str]] = {}
    for name, entry in described.get("attributes", {}).items():
        domain, _, identifier = name.rpartition("/")
        ((kind, value),) = entry.items()
        attributes.setdefault(domain or driver, {})[identifier] = _READ[kind](value)
    for name, entry in described.get("capacity", {}).items():
        domain, _, identifier = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[identifier] = entry["value"]
    return CelDevice(driver, attributes, capacity, described.get("allowMultipleAllocations", False))


def asked(expression: str, *, stored: bool) -> dict[str, Any]:
    """Our answer, in the form of the oracle's."""
    try:
        selector = compile_selector(expression, stored=stored)
    except SelectorTooCostly:
        return {"cost": LIMIT + 1}
    except SelectorError as error:
        return {"error": str(error)}
    results: list[dict[str, Any]] = []
    for device in map(device_of, DEVICES):
        try:
            results.append({"value": selector.matches(device)})
        except SelectorError as error:
            results.append({"error": str(error)})
    return {"cost": selector.cost, "results": results}


def answers_of(program: Path, questions: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The oracle's answers."""
    lines = [json.dumps({"expression": each, "stored": stored, "devices": DEVICES}) for each, stored in questions]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compared(ours: dict[str, Any], theirs: dict[str, Any], *, stored: bool) -> str:
    """The difference, or nothing."""
    if "error" in ours or "error" in theirs:
        same = _class(ours.get("error", "accepted")) == _class(theirs.get("error", "accepted"))
        return "" if same else f"{ours.get('error', 'accepted')!r} instead of {theirs.get('error', 'accepted')!r}"
    if not stored and theirs["cost"] > LIMIT:
        return "" if ours["cost"] > LIMIT else f"cost {ours['cost']} instead of {theirs['cost']}"
    if ours["cost"] != theirs["cost"]:
        return f"cost {ours['cost']} instead of {theirs['cost']}"
    for number, (one, other) in enumerate(zip(ours["results"], theirs["results"], strict=True)):
        if "value" in other and one.get("value") != other["value"]:
            return f"device {number}: {one} instead of {other}"
        if "error" in other and _class(one.get("error", "none")) != _class(other["error"]):
            return f"device {number}: {one} instead of {other}"
    return ""


def _class(error: str) -> str:
    """What went wrong, without details: the words of a syntax error come from ANTLR, those of types are ours."""
    error = re.sub(r"no such overload: .*", "no such overload", error)
    if "Syntax error" in error:
        return "syntax error"
    for kind in ("expected iterable type", "could not be converted to bool", "cost limit exceeded"):
        if kind in error:
            return kind
    for kind in ("invalid qualifier type", "parse error during conversion", "error parsing regexp", "formatting"):
        if kind in error:
            return kind
    return error
