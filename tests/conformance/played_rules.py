"""The rules that tests play on a real Kubernetes, read from these tests, and why the others are not played."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DRIVER_REASONS", "PLUGIN_REASONS", "PlayedRule", "played_rules"]

_TESTS = Path(__file__).parents[1] / "kubernetes"

_LINUX = "Linux itself checks a file's mode and the length of a path, and the mode does not affect root"
_POD = "the rule concerns the program as a container or a process, whatever devices it serves"
_RIGHTS = "the effect depends on an attacker who controls a node; the tests of the chart cover the account's rights"
_LOAD = "the effect is a load that grows over weeks or with many nodes"
_NEVER = "kubelets of 1.36 and 1.37 make no such call"
_RACE = "the kubelet does this only in a race that a test cannot reproduce reliably"
_NOBODY = "no kubelet reacts to the defect"

# The reasons for rules that no test plays on a kubelet, API server, scheduler or runtime of 1.36 and 1.37.
_FAULT = "no test injects this fault of an API server or of the clock yet"
_SEVERAL = "no test covers the effect in the container yet: it lacks a device or is not started"
DRIVER_REASONS: Mapping[str, str] = {
    **dict.fromkeys((f"API-0{number}" for number in range(1, 9)), _FAULT),
    **dict.fromkeys(("DRG-12", "PRP-25"), _FAULT),
    **dict.fromkeys((f"DRR-0{number}" for number in range(1, 7)), _LOAD),
    **dict.fromkeys(
        ("PRP-23", "PRP-24", "PRP-26", "UNP-05", "UNP-06", "UNP-07", "CDI-07", "CDI-08", "DST-07"), _SEVERAL
    ),
    **dict.fromkeys(("UNP-08", "DST-08", "DST-09", "SLC-18", "DRH-06"), _FAULT),
    **dict.fromkeys((f"PAR-0{number}" for number in range(1, 6)), _SEVERAL),
    **dict.fromkeys(("DRG-08", "DRG-09"), _LINUX),
    "DRE-01": _POD,
    **dict.fromkeys(("RGT-01", "RGT-03", "RGT-04"), _RIGHTS),
    "RGT-02": _LOAD,
}
PLUGIN_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("ALO-14", "ALO-15", "ALO-17", "ANS-14", "ANS-15", "PST-05", "REG-26", "END-10", "END-11"), _SEVERAL
    ),
    **dict.fromkeys(("ALO-16", "ALO-18", "ALO-19", "HOT-09", "HOT-10"), _FAULT),
    **dict.fromkeys(("REG-07", "REG-08"), _LINUX),
    **dict.fromkeys(("REG-02", "END-01", "END-02", "END-04", "END-09"), _POD),
    **dict.fromkeys((f"RES-0{number}" for number in range(1, 10)), _LOAD),
    **dict.fromkeys(("REG-13", "LST-13", "FLT-10"), _LOAD),
    **dict.fromkeys(("ALO-04", "ALO-07", "ANS-10", "PRF-08"), _NEVER),
    **dict.fromkeys((f"FLT-0{number}" for number in range(1, 10)), _NEVER),
    **dict.fromkeys(("LST-10", "HOT-06"), _NEVER),
    "ALO-11": _RACE,
    **dict.fromkeys(("ANS-12", "ALO-09", "PRF-06", "PRF-07", "END-03"), _NOBODY),
}


@dataclass(frozen=True, slots=True)
class PlayedRule:
    """`essential`: at 1.37.0 in CI too; `full`: in the full run only."""

    rule: str
    essential: bool
    full: bool


def played_rules() -> dict[str, PlayedRule]:
    """Each rule once, with the marks of the test that runs most often."""
    found: dict[str, PlayedRule] = {}
    for path in sorted(_TESTS.glob("test_*.py")):
        for played in _played_in(path):
            before = found.get(played.rule)
            if before is None or (before.full, not before.essential) > (played.full, not played.essential):
                found[played.rule] = played
    return found


def _played_in(path: Path) -> Iterator[PlayedRule]:
    for function in ast.parse(path.read_text()).body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [ast.unparse(decorator) for decorator in function.decorator_list]
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.plays":
                    for rule in ast.literal_eval(ast.Tuple(decorator.args, ast.Load())):
                        yield PlayedRule(
                            rule, "pytest.mark.essential" in marks, any("mark.full(" in mark for mark in marks)
                        )
