"""The baseline: known findings, so that only new ones fail a build.

A line is a rule's id, with `@VERSION` if it concerns one kubelet version, `until YYYY-MM-DD` if it is accepted only
temporarily, and the reason after `#`.
"""

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.conformance import catalogue
from plugwright.conformance.rule import Report, Verdict
from plugwright.errors import ConfigError

__all__ = ["Baseline", "BaselineEntry", "baseline_text", "read_baseline"]

_LINE = re.compile(r"(?P<rule>\S+)(\s+until\s+(?P<until>\S+))?")


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """`name` is a rule, or a rule and a version; after the day `until` it is no longer accepted."""

    name: str
    reason: str = ""
    until: datetime.date | None = None

    def is_valid(self, today: datetime.date) -> bool:
        return self.until is None or today <= self.until


@dataclass(frozen=True, slots=True)
class Baseline:
    """`details` are the entries with a reason or a date."""

    entries: tuple[str, ...] = ()
    details: tuple[BaselineEntry, ...] = ()

    @property
    def known(self) -> list[BaselineEntry]:
        details = {entry.name: entry for entry in self.details}
        return [details.get(name) or BaselineEntry(name) for name in self.entries]

    def report(self, command: str, verdicts: Sequence[Verdict], today: datetime.date | None = None) -> Report:
        """The verdicts with known findings marked, and the fixed and expired entries."""
        today = today or datetime.datetime.now(tz=datetime.UTC).date()
        valid = {entry.name: entry for entry in self.known if entry.is_valid(today)}
        marked = tuple(_marked(verdict, valid) for verdict in verdicts)
        failing = {name for verdict in marked if verdict.status.is_finding for name in _names(verdict)}
        checked = {name for verdict in marked if verdict.status.is_proof for name in _names(verdict)}
        fixed = tuple(name for name in self.entries if name in checked and name not in failing)
        expired = tuple(
            f"{entry.name} (until {entry.until})"
            for entry in self.known
            if not entry.is_valid(today) and entry.name in failing
        )
        return Report(command, marked, fixed, expired)


def _marked(verdict: Verdict, valid: dict[str, BaselineEntry]) -> Verdict:
    entry = next((valid[name] for name in _names(verdict) if name in valid), None)
    if entry is None or not verdict.status.is_finding:
        return verdict
    return replace(verdict, known=True, reason=entry.reason)


def _names(verdict: Verdict) -> tuple[str, str]:
    return f"{verdict.rule.id}@{verdict.version}", verdict.rule.id


def read_baseline(path: Path) -> Baseline:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the baseline {path}: {error}") from error
    entries = [_entry(f"{path} line {number}", line) for number, line in enumerate(lines, 1)]
    known = tuple(entry for entry in entries if entry is not None)
    return Baseline(tuple(entry.name for entry in known), known)


def _entry(place: str, line: str) -> BaselineEntry | None:
    text, _, reason = line.partition("#")
    if not text.strip():
        return None
    match = _LINE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{place} must be RULE, RULE@VERSION or RULE until YYYY-MM-DD, got {text.strip()!r}")
    try:
        catalogue.find(match["rule"].partition("@")[0])
        until = datetime.date.fromisoformat(match["until"]) if match["until"] else None
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except ValueError:
        raise ConfigError(f"{place}: the date must be YYYY-MM-DD, got {match['until']!r}") from None
    return BaselineEntry(match["rule"].upper(), reason.strip(), until)


def baseline_text(verdicts: Iterable[Verdict], known: Baseline | None = None) -> str:
    """A baseline with every finding; one line for a rule that fails with every version.

    Entries in `known` keep their reason and their date.
    """
    verdicts = list(verdicts)
    before = {entry.name: entry for entry in (known or Baseline()).known}
    lines = ["# Known findings: RULE or RULE@VERSION, optionally `until YYYY-MM-DD`, and the reason after `#`."]
    for rule in dict.fromkeys(verdict.rule for verdict in verdicts if verdict.status.is_finding):
        mine = [verdict for verdict in verdicts if verdict.rule is rule]
        failing = [verdict for verdict in mine if verdict.status.is_finding]
        names = [rule.id] if len(failing) == len(mine) else [f"{rule.id}@{verdict.version}" for verdict in failing]
        lines += [_line(before.get(name) or BaselineEntry(name, rule.title)) for name in names]
    return "\n".join(lines) + "\n"


def _line(entry: BaselineEntry) -> str:
    return f"{entry.name}{f' until {entry.until}' if entry.until else ''}  # {entry.reason}"
