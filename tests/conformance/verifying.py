"""What the tests of conformance share: commands of the small plugin and driver, and limits for what must fail."""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import Rule, RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.kubelet.versions import profile

__all__ = [
    "FAIL",
    "PARAMETERS",
    "PATIENT",
    "RECOVER",
    "broken_rules",
    "distinct_versions",
    "driver_options",
    "host_root",
    "missed_mutants",
    "small_driver",
    "small_plugin",
    "verdict_of",
]

FAIL, RECOVER = "touch {root}/fail-{id}", "rm -f {root}/fail-{id}"
PATIENT = TimeLimits(start=90, register=90, prompt=60, call=60, end=60)
PARAMETERS = {
    "apiVersion": "part.example.com/v1",
    "kind": "PartConfig",
    "mode": "fast",
}  # of the small driver that takes some
_SLOW_START = 15.0  # where a start must fail
_BROKEN = (RuleStatus.FAIL, RuleStatus.WARNING)
_NOT_KEPT = (*_BROKEN, RuleStatus.ERROR, RuleStatus.NOT_CHECKED)


def small_plugin(mutant: str = "", *flags: str) -> Target:
    program = str(Path(__file__).parent / "plugin.py")
    return Target((sys.executable, program, "--root", "{root}", *(("--mutant", mutant) if mutant else ()), *flags))


def small_driver(mutant: str = "", *flags: str) -> Target:
    program = str(Path(__file__).parent / "driver.py")
    return Target((sys.executable, program, "--root", "{root}", *(("--mutant", mutant) if mutant else ()), *flags))


def driver_options(version: str = "1.36", limits: TimeLimits = PATIENT) -> VerifyOptions:
    return VerifyOptions(version, limits, dra=True)


def distinct_versions(rules: Iterable[type[Rule]], oldest: int) -> list[str]:
    """One minor version from 1.`oldest` on for each behaviour: the oldest with its profile and its rules."""
    found: dict[object, str] = {}
    for version in (f"1.{minor}" for minor in range(oldest, 38)):
        behaviour = replace(profile(version), name=""), tuple(rule.holds_for(version) for rule in rules)
        found.setdefault(behaviour, version)
    return list(found.values())


def host_root(directory: Path) -> Path:
    """A machine that has the nodes of tape drives and of simulated GPUs: they are /dev/null here."""
    names = ["st0", "st1", *(f"nvidia{number}" for number in range(8)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    (directory / "dev").mkdir()
    for name in (*names, "null", "zero", "full"):
        (directory / "dev" / name).symlink_to("/dev/null")
    return directory


def broken_rules(verdicts: Iterable[Verdict], but: Collection[str]) -> list[str]:
    """What was expected and seen if a rule is not kept or not checked; `but` are those that need a quiet machine."""
    return [
        f"{verdict.rule.id} {verdict.status}: expected {verdict.expected}, seen {verdict.seen}"
        for verdict in verdicts
        if verdict.status in _NOT_KEPT and verdict.rule.id not in but
    ]


def missed_mutants(names: Iterable[str], verdicts: Iterable[Verdict]) -> dict[str, str]:
    """The mutants that the rule named for them let pass, with its verdict."""
    return {
        name: f"{verdict.rule.id} {verdict.status}: {verdict.seen}"
        for name, verdict in zip(names, verdicts, strict=True)
        if verdict.status not in _BROKEN
    }


async def verdict_of(
    target: Target,
    rule: str,
    version: str = "1.36",
    root: Path | None = None,
    *,
    slow: bool = False,
    dra: bool = False,
    parameters: Mapping[str, object] | None = None,
) -> Verdict:
    """The verdict on a plugin that breaks the rule: limits are long where it must work, and short where it must not.

    A mutant that is not caught so is asked again with long ones alone: on a busy machine what works takes longer, too.
    """
    start = _SLOW_START if slow else PATIENT.start
    short = TimeLimits(start=start, register=4, prompt=1, call=4, end=3, republish=4)
    for limits in (short, replace(PATIENT, start=start)):
        options = VerifyOptions(version, limits, FAIL, RECOVER, directory=root, dra=dra, parameters=parameters)
        made = await runner.verify(target, [catalogue.find(rule)], options)
        [verdict] = [verdict for verdict in made if verdict.rule.id == rule]  # another one may be named as its cause
        if verdict.status in _BROKEN:
            break
    return verdict
