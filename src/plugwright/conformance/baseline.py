"""The baseline: failures that are known, so that only new ones fail a build.

A line is a rule's id, with `@VERSION` where it concerns one kubelet version; what follows `#` is the reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.conformance import catalogue
from plugwright.conformance.rule import Report, RuleStatus, Verdict
from plugwright.errors import ConfigError

__all__ = ["Baseline", "baseline_text", "read_baseline"]


@dataclass(frozen=True, slots=True)
class Baseline:
    entries: tuple[str, ...] = ()

    def report(self, command: str, verdicts: Sequence[Verdict]) -> Report:
        """The verdicts with known failures marked, and the entries that no longer fail."""
        marked = tuple(
            replace(verdict, known=True) if _fails(verdict) and self._names(verdict) else verdict
            for verdict in verdicts
        )
        failing = {entry for verdict in marked if _fails(verdict) for entry in _entries(verdict)}
        checked = {entry for verdict in marked for entry in _entries(verdict)}
        fixed = tuple(entry for entry in self.entries if entry in checked and entry not in failing)
        return Report(command, marked, fixed)

    def _names(self, verdict: Verdict) -> bool:
        return any(entry in self.entries for entry in _entries(verdict))


def _fails(verdict: Verdict) -> bool:
    return verdict.status in (RuleStatus.FAIL, RuleStatus.WARNING)


def _entries(verdict: Verdict) -> tuple[str, str]:
    return verdict.rule.id, f"{verdict.rule.id}@{verdict.version}"


def read_baseline(path: Path) -> Baseline:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the baseline {path}: {error}") from error
    entries = [line.partition("#")[0].strip() for line in lines]
    for number, entry in enumerate(entries, 1):
        if entry:
            _check(path, number, entry)
    return Baseline(tuple(entry.upper() for entry in entries if entry))


def _check(path: Path, number: int, entry: str) -> None:
    try:
        catalogue.find(entry.partition("@")[0])
    except ConfigError as error:
        raise ConfigError(f"{path} line {number}: {error}") from None


def baseline_text(verdicts: Iterable[Verdict]) -> str:
    """A baseline with everything that fails now; a rule that fails with every version has one line."""
    verdicts = list(verdicts)
    lines = ["# Known failures: rule, or rule@version, and the reason."]
    for rule in dict.fromkeys(verdict.rule for verdict in verdicts if _fails(verdict)):
        mine = [verdict for verdict in verdicts if verdict.rule is rule]
        failing = [verdict for verdict in mine if _fails(verdict)]
        names = [rule.id] if len(failing) == len(mine) else [f"{rule.id}@{verdict.version}" for verdict in failing]
        lines += [f"{name}  # {rule.title}" for name in names]
    return "\n".join(lines) + "\n"
