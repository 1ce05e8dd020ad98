"""Checks rules on one program and converts outcomes into verdicts, so that one cause gives one finding.

Registration comes first: without it only the rules that explain its failure are meaningful. A crash is an error of the
rule in which it happened. A rule that fails at a step covered by another rule is not checked, and names that rule. A
program that has ended is restarted before the next rule.
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plugwright.conformance import catalogue
from plugwright.conformance.program import Ending
from plugwright.conformance.progress import RulesInProgress
from plugwright.conformance.rule import Level, Rule, RuleStatus, Verdict
from plugwright.conformance.verifier import Verifier
from plugwright.errors import (
    ConfigError,
    PluginNotRunning,
    PlugwrightError,
    PrerequisiteBroken,
    RuleNotApplicable,
    RuleNotChecked,
    RuleViolated,
)
from plugwright.kubelet.events import Call, Event, StateChange
from plugwright.model import some

__all__ = ["Checker"]

_SHOWN_CALLS = 8


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of one check; `cause` is the rule about the failed step, if there can be one.

    `violated` if the rule itself found a fault, and not an error before.
    """

    status: RuleStatus
    expected: str = ""
    seen: str = ""
    cause: str = ""
    violated: bool = False


class Checker:
    """The verdicts of one verifier so far, and the state that they depend on."""

    def __init__(
        self, verifier: Verifier, progress: RulesInProgress, proven: Mapping[type[Rule], Verdict] | None = None
    ) -> None:
        self._verifier = verifier
        self._progress = progress
        self._version = verifier.options.version
        self._proven = proven or {}  # verdicts that were reported before
        self._made: dict[type[Rule], Verdict] = {**self._proven}
        self._crashes: dict[str, str] = {}  # the rule in which a program first ended in this way
        self._rules: Sequence[type[Rule]] = ()
        self._told: set[str] = set()  # causes that were reported
        self._checking: set[type[Rule]] = set()  # a rule may need the verdict on another, and that one on a third
        self._lost = ""  # the rule from which on the program can no longer be started

    async def check(self, rules: Sequence[type[Rule]]) -> AsyncIterator[Verdict]:
        """One verdict for each rule, and for each other rule that explains why one of them was not checked."""
        self._rules = rules
        await self._verifier.started()
        if self._verifier.failure:
            for verdict in await self._unregistered(rules):
                yield verdict
            return
        for rule in (rule for rule in rules if rule not in self._proven):
            # It can be checked already, as the cause of an earlier one.
            verdict = self._made.get(rule) or await self._checked(rule)
            for made in self._causes(verdict, rules):
                yield made
            yield verdict

    async def proof(self, rule: type[Rule]) -> Verdict | None:
        """The verdict on a rule that is kept or not applicable; None for any other outcome."""
        if unasked := self._unasked(rule):
            return unasked
        with self._progress.checking(rule):
            return await self._proof(rule)

    async def _proof(self, rule: type[Rule]) -> Verdict | None:
        verifier, began = self._verifier, time.monotonic()
        try:
            before = None if rule.alone else await verifier.running()
        except PluginNotRunning:
            return None
        outcome = await self._outcome(rule)
        ending = await self._ended(rule, outcome, same=before is verifier.current)
        if ending is not None or outcome.status not in (RuleStatus.PASS, RuleStatus.NOT_APPLICABLE):
            if rule.holds:
                await verifier.renew()
            return None
        return replace(self._verdict(rule, outcome.status), seen=outcome.seen, seconds=time.monotonic() - began)

    async def _unregistered(self, rules: Sequence[type[Rule]]) -> list[Verdict]:
        """The verdicts without a registration: nothing is proven, only failures count, the first MUST is the cause."""
        registration = catalogue.registration(dra=self._verifier.options.dra)
        session, failure = await self._verifier.started(), self._verifier.failure
        output = session.program.how_ended.lines if session.programs else ()
        others = [rule for rule in rules if rule is not registration]
        verdicts = [self._unasked(rule) or await self._explains(rule) for rule in others]
        named = next((verdict.rule for verdict in verdicts if verdict.status is RuleStatus.FAIL), None)
        own = replace(
            self._verdict(registration, RuleStatus.FAIL),
            expected="a registration, and a list of devices",
            seen=failure,
            output=output,
            calls=_lines(self._verifier, 0),
        )
        if named is not None:
            own = self._not_checked(registration, named.id)
        cause = (named or registration).id
        verdicts = [
            verdict if verdict.status is not RuleStatus.NOT_CHECKED else replace(verdict, depends_on=cause)
            for verdict in verdicts
        ]
        return [own, *verdicts] if named is None or registration in rules else verdicts

    async def _explains(self, rule: type[Rule]) -> Verdict:
        try:
            await rule().check(self._verifier)
        except RuleViolated as error:
            verdict = self._verdict(rule, _failed(rule))
            return replace(verdict, expected=error.expected, seen=error.seen, calls=_lines(self._verifier, 0))
        except (PlugwrightError, TimeoutError, OSError):
            pass  # it needs missing facts
        return self._not_checked(rule, "")

    async def _checked(self, rule: type[Rule]) -> Verdict:
        verdict = self._unasked(rule)
        if verdict is None:
            began = time.monotonic()
            self._checking.add(rule)
            with self._progress.checking(rule):
                verdict = replace(await self._asked(rule), seconds=time.monotonic() - began)
            self._checking.discard(rule)
            if rule.holds and verdict.status is RuleStatus.FAIL:
                await self._verifier.renew()
        self._made[rule] = verdict
        return verdict

    def _unasked(self, rule: type[Rule]) -> Verdict | None:
        """The verdict on a rule that this run does not check."""
        if not rule.holds_for(self._version):
            return replace(self._verdict(rule, RuleStatus.NOT_APPLICABLE), seen=f"holds {rule.versions()}")
        if rule.thorough and not self._verifier.options.thorough:
            return replace(self._verdict(rule, RuleStatus.NOT_APPLICABLE), seen="takes minutes: only with --thorough")
        return None

    async def _asked(self, rule: type[Rule]) -> Verdict:
        verifier = self._verifier
        if not rule.alone:
            try:
                await verifier.running()
            except PluginNotRunning as error:
                return self._unstartable(rule, str(error))
        before = verifier.current
        mark = before.mark if before else 0
        outcome = await self._outcome(rule)
        same = before is verifier.current
        ending = await self._ended(rule, outcome, same=same)
        verdict = replace(
            self._verdict(rule, outcome.status),
            expected=outcome.expected,
            seen=outcome.seen,
            calls=_lines(verifier, mark if same else 0) if outcome.status.is_finding else (),
        )
        if ending is not None:
            self._crashes.setdefault(ending.signature, rule.id)
        crashed = ending is not None
        if (crashed or verdict.status.is_finding) and (cause := await self._followed(rule, crashed=crashed)):
            return replace(self._not_checked(rule, cause), seen=ending.text if ending else outcome.seen)
        if ending is not None:
            if await self._has_crashed(rule, outcome.cause):
                return replace(self._not_checked(rule, outcome.cause), seen=outcome.seen)
            return self._crashed(verdict, ending, violated=outcome.violated)
        for cause in catalogue.causes(rule, outcome.cause):
            if await self._breaks(rule, cause):
                return replace(self._not_checked(rule, cause), seen=outcome.seen)
        if outcome.status is RuleStatus.ERROR:
            return self._crashed(verdict, Ending(outcome.seen, (), "not registered"), violated=False)
        return verdict

    async def _outcome(self, rule: type[Rule]) -> _Outcome:
        failed = _failed(rule)
        try:
            self._verifier.examined.clear()
            await rule().check(self._verifier)
        except PrerequisiteBroken as error:
            return self._broken(rule, error)
        except RuleViolated as error:
            return _Outcome(failed, error.expected, error.seen, violated=True)
        except RuleNotApplicable as error:
            return _Outcome(RuleStatus.NOT_APPLICABLE, "", str(error))
        except RuleNotChecked as error:
            return _Outcome(RuleStatus.NOT_CHECKED, "", str(error))
        except ConfigError:
            raise
        except PluginNotRunning as error:
            return _Outcome(RuleStatus.ERROR, "the program registers", str(error), catalogue.restarts(rule))
        except PlugwrightError as error:
            return _Outcome(failed, rule.title, str(error), catalogue.prerequisite(rule))
        except TimeoutError:
            return _Outcome(failed, rule.title, "no answer in time", catalogue.prerequisite(rule))
        except OSError as error:  # such as a removed file
            return _Outcome(failed, rule.title, f"{type(error).__name__}: {error}")
        missing = self._verifier.nothing_examined()
        return _Outcome(RuleStatus.NOT_APPLICABLE, "", missing) if missing else _Outcome(RuleStatus.PASS)

    def _broken(self, rule: type[Rule], error: PrerequisiteBroken) -> _Outcome:
        """The outcome of a rule that found a step broken: its own fault if it is the rule about that step."""
        if error.rule_id == rule.id:
            return _Outcome(_failed(rule), error.expected, error.seen, violated=True)
        # Checked alone, the rule has still found a fault.
        selected = catalogue.find(error.rule_id) in self._rules
        return _Outcome(_failed(rule), error.expected, error.seen, error.rule_id if selected else "")

    async def _ended(self, rule: type[Rule], outcome: _Outcome, *, same: bool) -> Ending | None:
        """How the program crashed or stopped listening during the rule."""
        if not rule.alone:
            return await self._verifier.ended(patient=not outcome.violated)
        # Rules of this kind end programs, and know the possible ends; an unexpected error is different.
        expected = outcome.status in (RuleStatus.PASS, RuleStatus.NOT_APPLICABLE) or same
        return None if expected else self._verifier.last_crash()

    def _crashed(self, verdict: Verdict, ending: Ending, *, violated: bool) -> Verdict:
        rule = verdict.rule
        earlier = self._crashes.setdefault(ending.signature, rule.id)
        if catalogue.is_about_crashes(rule):
            if self._is_found(earlier):
                return replace(self._not_checked(rule, earlier), seen=ending.text)
            self._crashes[ending.signature] = rule.id  # it names the cause better than the rule in which it was seen
            if not violated:
                verdict = replace(verdict, status=_failed(rule), expected=rule.title, seen=ending.text)
            return replace(verdict, output=ending.lines, calls=verdict.calls or _lines(self._verifier, 0))
        if violated:
            return replace(verdict, output=ending.lines)  # the rule itself reports the fault
        if earlier != rule.id and rule.id != catalogue.prerequisite(catalogue.find(earlier)):
            return replace(self._not_checked(rule, earlier), seen=ending.text)
        self._crashes[ending.signature] = rule.id
        return replace(
            verdict,
            status=RuleStatus.ERROR,
            expected="the program runs, and listens on its socket",
            seen=ending.text,
            output=ending.lines,
            calls=verdict.calls or _lines(self._verifier, 0),
        )

    def _is_found(self, rule_id: str) -> bool:
        verdict = self._made.get(catalogue.find(rule_id))
        return verdict is not None and verdict.status.is_finding

    async def _has_crashed(self, rule: type[Rule], cause: str) -> bool:
        """Whether the program also ends in the rule about the step that failed, and that rule reports it."""
        if not cause or not (catalogue.is_about_crashes(rule) or await self._breaks(rule, cause)):
            return False
        verdict = self._made.get(catalogue.find(cause))
        return verdict is not None and verdict.status.is_finding and bool(verdict.output)

    def _unstartable(self, rule: type[Rule], reason: str) -> Verdict:
        if self._lost:
            return self._not_checked(rule, self._lost)
        self._lost = rule.id
        ending = self._verifier.last_crash()
        verdict = replace(self._verdict(rule, RuleStatus.ERROR), expected="the program can be started", seen=reason)
        return replace(verdict, output=ending.lines if ending else ())

    async def _followed(self, rule: type[Rule], *, crashed: bool) -> str:
        """The id of the selected rule whose violation also breaks this one; empty if there is none."""
        for cause in catalogue.followed(rule, crashed=crashed):
            if catalogue.find(cause) in self._rules and await self._breaks(rule, cause):
                return cause
        return ""

    async def _breaks(self, rule: type[Rule], cause: str) -> bool:
        """Whether the rule about the failed step is violated too; checks it now if necessary."""
        other = catalogue.find(cause)
        if other in self._checking:  # a rule is never its own cause
            return False
        verdict = self._made.get(other) or await self._checked(other)
        if verdict.status is RuleStatus.NOT_CHECKED:
            return verdict.depends_on != rule.id
        return verdict.status in (RuleStatus.FAIL, RuleStatus.ERROR)

    def _causes(self, verdict: Verdict, rules: Sequence[type[Rule]]) -> list[Verdict]:
        """The verdict on an unrequested rule that prevents this check, for the first time."""
        if not verdict.depends_on or verdict.depends_on in self._told:
            return []
        self._told.add(verdict.depends_on)
        cause = catalogue.find(verdict.depends_on)
        return [self._made[cause]] if cause in self._made and cause not in rules else []

    def _not_checked(self, rule: type[Rule], cause: str) -> Verdict:
        return replace(self._verdict(rule, RuleStatus.NOT_CHECKED), depends_on=cause)

    def _verdict(self, rule: type[Rule], status: RuleStatus) -> Verdict:
        return Verdict(rule, self._version, status)


def _failed(rule: type[Rule]) -> RuleStatus:
    return RuleStatus.FAIL if rule.level is Level.MUST else RuleStatus.WARNING


def _lines(verifier: Verifier, mark: int) -> tuple[str, ...]:
    if verifier.current is None:
        return ()
    shown = [event for event in verifier.current.kubelet.recorded[mark:] if isinstance(event, Call | StateChange)]
    return tuple(_line(event) for event in shown[-_SHOWN_CALLS:])


def _line(event: Event) -> str:
    """The event as shown by `plugwright kubelet`."""
    if isinstance(event, Call):
        asked = f" [{some(event.asked, 4)}]" if event.asked else ""
        took = f" {event.seconds * 1000:.1f} ms" if event.outcome != "open" else ""
        return f"{event.method:<24} {event.resource}{asked}{took} {event.outcome}"
    assert isinstance(event, StateChange)
    return f"{event.kind:<24} {event.about}{f': {event.text}' if event.text else ''}"
