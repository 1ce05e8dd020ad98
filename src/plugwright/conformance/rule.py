"""A rule: what a device plugin must do, why it matters on a node, and how to fix one that does not.

A rule is a class with its facts as attributes and one method, `check`, which returns when the rule is kept and raises
`RuleViolated` or `RuleNotApplicable` otherwise. What the rule looks at is a `Verifier`'s; how a verdict is shown is the
callers'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from plugwright.conformance.verifier import Verifier

__all__ = ["Level", "Report", "Rule", "RuleStatus", "Verdict"]


class Level(StrEnum):
    """MUST: a node or its pods break. SHOULD: trouble that an operator meets sooner or later."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class RuleStatus(StrEnum):
    PASS = "pass"  # noqa: S105  not a password
    FAIL = "fail"
    WARNING = "warning"
    NOT_APPLICABLE = "not applicable"


class Rule:
    """`title` says what is expected; `facts` are numbers of docs/kubelet-behaviour.md; `since`, `until` are versions.

    A `thorough` rule takes minutes and is only checked where asked for. One that is `alone` starts the program itself.
    """

    id: ClassVar[str]
    level: ClassVar[Level]
    title: ClassVar[str]
    why: ClassVar[str]
    fix: ClassVar[str]
    facts: ClassVar[tuple[str, ...]] = ()
    since: ClassVar[str] = ""
    until: ClassVar[str] = ""
    thorough: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    async def check(self, verifier: Verifier) -> None:
        raise NotImplementedError

    @classmethod
    def anchor(cls) -> str:
        """The rule's place in the documentation."""
        return f"docs/verify.md#{cls.id.lower()}"

    @classmethod
    def holds_for(cls, version: str) -> bool:
        number = _number(version)
        return (not cls.since or number >= _number(cls.since)) and (not cls.until or number <= _number(cls.until))

    @classmethod
    def versions(cls) -> str:
        if cls.since and cls.until:
            return f"{cls.since} to {cls.until}"
        return f"from {cls.since}" if cls.since else f"up to {cls.until}" if cls.until else "all"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one rule with one kubelet version; `calls` are the last ones before it, as lines.

    `known` is set for a failure that the baseline names.
    """

    rule: type[Rule]
    version: str
    status: RuleStatus
    expected: str = ""
    seen: str = ""
    calls: tuple[str, ...] = ()
    seconds: float = 0.0
    known: bool = False

    @property
    def breaks(self) -> bool:
        """Whether the exit code is 1 because of it."""
        return self.status is RuleStatus.FAIL and not self.known

    def facts(self) -> Mapping[str, object]:
        """The verdict as a JSON object."""
        return {
            "rule": self.rule.id,
            "level": str(self.rule.level),
            "kubelet": self.version,
            "status": str(self.status),
            "known": self.known,
            "title": self.rule.title,
            "expected": self.expected,
            "seen": self.seen,
            "calls": list(self.calls),
            "why": self.rule.why,
            "fix": self.rule.fix,
            "page": self.rule.anchor(),
            "kubelet_facts": list(self.rule.facts),
            "versions": self.rule.versions(),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts of one command, in order."""

    command: str
    verdicts: tuple[Verdict, ...]
    fixed: tuple[str, ...] = field(default=())  # rules of the baseline that no longer fail

    @property
    def failed(self) -> bool:
        return any(verdict.breaks for verdict in self.verdicts)

    def count(self, status: RuleStatus) -> int:
        return sum(verdict.status is status for verdict in self.verdicts)


def _number(version: str) -> tuple[int, int]:
    major, minor = version.removeprefix("v").split(".")[:2]
    return int(major), int(minor)
