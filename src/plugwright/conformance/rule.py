"""A rule: the required behaviour of a device plugin, why it matters on a node, and how to fix a plugin.

A rule is a class with its facts as attributes and one method, `check`, which returns if the program keeps the rule and
raises `RuleViolated` or `RuleNotApplicable` otherwise. `checker` converts the outcome into a verdict.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, metadata
from typing import ClassVar
from urllib.parse import urlsplit

from plugwright.conformance.verifier import Verifier

__all__ = ["REGISTRATION", "Level", "Report", "Rule", "RuleStatus", "Verdict", "documentation_url", "installed_docs"]

REGISTRATION = ("REG-01", "DRG-01")  # the rules on which all others depend


class Level(StrEnum):
    """MUST: a violation breaks a node or its pods. SHOULD: a violation causes problems sooner or later."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class RuleStatus(StrEnum):
    """ERROR: the program crashed or stopped listening. NOT_CHECKED: another, failed rule or time prevents the check."""

    PASS = "pass"  # noqa: S105  not a password
    FAIL = "fail"
    WARNING = "warning"
    ERROR = "error"
    NOT_CHECKED = "not checked"
    NOT_APPLICABLE = "not applicable"

    @property
    def is_finding(self) -> bool:
        return self in (RuleStatus.FAIL, RuleStatus.WARNING, RuleStatus.ERROR)

    @property
    def is_proof(self) -> bool:
        """Whether the rule was checked completely, or the program ended in it."""
        return self is RuleStatus.PASS or self.is_finding


class Rule:
    """`title` is the expectation; `facts` are numbers of docs/kubelet-behaviour.md; `since`, `until` are versions.

    A `thorough` rule takes minutes and is only checked on request. A rule that is `alone` starts the program itself.
    A `note` concerns few nodes, or calls that current kubelets do not make: it is only checked if it is named.
    `waits` is how often the rule waits for the program to restart or to react: such rules are checked in parallel.
    Rules with the same `observation` use one result, and are checked in sequence.
    A program that breaks a rule that `holds` may keep devices from the next rules, so it is started again before them.
    A program that breaks one of the rules in `follows` also breaks this one, so it is checked when they are kept.
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
    note: ClassVar[bool] = False
    waits: ClassVar[int] = 0
    holds: ClassVar[bool] = False
    observation: ClassVar[str] = ""
    follows: ClassVar[tuple[str, ...]] = ()

    async def check(self, verifier: Verifier) -> None:
        raise NotImplementedError

    @classmethod
    def group(cls) -> str:
        """The name of the rules checked in sequence with this one; empty for those that do not wait."""
        return cls.observation or (cls.id if cls.alone or cls.waits else "")

    @classmethod
    def page(cls) -> str:
        """The URL of the rule in the documentation; empty if the documentation has no address."""
        url = documentation_url()
        return f"{url}/verify.md#{cls.id.lower()}" if url else ""

    @classmethod
    def more(cls) -> str:
        """The source of more information on the rule: the command, which always works, and the page."""
        page = cls.page()
        return f"plugwright verify --explain {cls.id}{f', {page}' if page else ''}"

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

    `depends_on` is the failed rule that prevented the check, `output` the last lines of an ended program. `known` is
    set for a finding in the baseline, with its `reason`.
    """

    rule: type[Rule]
    version: str
    status: RuleStatus
    expected: str = ""
    seen: str = ""
    calls: tuple[str, ...] = ()
    seconds: float = 0.0
    known: bool = False
    depends_on: str = ""
    output: tuple[str, ...] = ()
    reason: str = ""

    @property
    def breaks(self) -> bool:
        """Whether it causes the exit code 1."""
        return self.status in (RuleStatus.FAIL, RuleStatus.ERROR) and not self.known

    def facts(self) -> Mapping[str, object]:
        """The verdict as a JSON object."""
        return {
            "rule": self.rule.id,
            "level": str(self.rule.level),
            "kubelet": self.version,
            "status": str(self.status),
            "known": self.known,
            "reason": self.reason,
            "depends_on": self.depends_on,
            "title": self.rule.title,
            "expected": self.expected,
            "seen": self.seen,
            "calls": list(self.calls),
            "output": list(self.output),
            "why": self.rule.why,
            "fix": self.rule.fix,
            "more": self.rule.more(),
            "page": self.rule.page(),
            "kubelet_facts": list(self.rule.facts),
            "versions": self.rule.versions(),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts of one command, in order."""

    command: str
    verdicts: tuple[Verdict, ...]
    fixed: tuple[str, ...] = field(default=())  # entries of the baseline that no longer fail
    expired: tuple[str, ...] = field(default=())  # entries of the baseline whose date has passed
    source: str = ""  # the file of the project at which findings are shown

    @property
    def failed(self) -> bool:
        return any(verdict.breaks for verdict in self.verdicts)

    @property
    def verified(self) -> bool:
        """Whether anything was proven with some version; known findings that hide everything else prove nothing."""
        versions = {verdict.version for verdict in self.verdicts}
        return any(_proves([one for one in self.verdicts if one.version == version]) for version in versions)

    @property
    def exit_code(self) -> int:
        """0 if every checkable rule is kept, 1 for a finding, 2 if nothing was proven."""
        return 1 if self.failed else 0 if self.verified else 2

    @property
    def outcome(self) -> str:
        return ("passed", "failed", "nothing was verified")[self.exit_code]

    def count(self, status: RuleStatus) -> int:
        return sum(verdict.status is status for verdict in self.verdicts)


def _proves(verdicts: Sequence[Verdict]) -> bool:
    """Whether a rule passed, or failed without preventing other checks."""
    statuses = {verdict.status for verdict in verdicts}
    if RuleStatus.PASS in statuses:
        return True
    found = [verdict for verdict in verdicts if verdict.status.is_finding and verdict.rule.id not in REGISTRATION]
    return bool(found) and RuleStatus.NOT_CHECKED not in statuses


def _number(version: str) -> tuple[int, int]:
    major, minor = version.removeprefix("v").split(".")[:2]
    return int(major), int(minor)


def documentation_url() -> str:
    """The address of a copy of the directory docs, without a slash at its end; empty if there is none.

    PLUGWRIGHT_DOCS_URL can name one, such as that of the tag used by a CI job. Without it the address is that of the
    project: `Documentation` under `[project.urls]`, which a release has, or the commit that pip installed from a
    repository.
    """
    published = _project_url("Documentation").removesuffix("index.md")
    address = os.environ.get("PLUGWRIGHT_DOCS_URL") or published or installed_docs(_origin())
    return address.rstrip("/")


def installed_docs(origin: str) -> str:
    """The address of the docs in the public repository of an installation; empty if it is from another source.

    `origin` is the installation's direct_url.json (PEP 610).
    """
    try:
        source = json.loads(origin or "{}")
        url, commit = urlsplit(source["url"]), source["vcs_info"]["commit_id"]
    except (KeyError, TypeError, ValueError):
        return ""
    if url.scheme != "https" or url.username or url.password:  # credentials do not belong in a report
        return ""
    return f"https://{url.netloc}{url.path.rstrip('/').removesuffix('.git')}/blob/{commit}/docs"


@cache
def _origin() -> str:
    try:
        return distribution("plugwright").read_text("direct_url.json") or ""
    except PackageNotFoundError:
        return ""


@cache
def _project_url(label: str) -> str:
    try:
        found = metadata("plugwright").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    urls: dict[str, str] = dict(text.split(", ", 1) for text in found if ", " in text)
    return urls.get(label, "")
