"""Checks rules one after the other and makes verdicts of what happens."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from plugwright.conformance.dra.driver_verifier import DriverVerifier
from plugwright.conformance.program import Target
from plugwright.conformance.rule import Level, Rule, RuleStatus, Verdict
from plugwright.conformance.verifier import Verifier, VerifyOptions
from plugwright.errors import ConfigError, PluginNotRunning, PlugwrightError, RuleNotApplicable, RuleViolated
from plugwright.kubelet.events import Call, Event, StateChange
from plugwright.model import some

__all__ = ["run", "verdicts", "verify"]

_SHOWN_CALLS = 8


def run(
    target: Target,
    rules: Sequence[type[Rule]],
    options: Sequence[VerifyOptions],
    seen: Callable[[Verdict], None],
    jobs: int,
) -> list[Verdict] | None:
    """The verdicts for each of the options, `jobs` at a time; None if a signal ended it. `seen` gets each at once."""
    try:
        return asyncio.run(_verify_all(target, rules, options, seen, jobs))
    except asyncio.CancelledError:
        return None


async def _verify_all(
    target: Target,
    rules: Sequence[type[Rule]],
    options: Sequence[VerifyOptions],
    seen: Callable[[Verdict], None],
    jobs: int,
) -> list[Verdict]:
    turn = asyncio.Semaphore(jobs)
    this = asyncio.current_task()
    assert this is not None
    # Ctrl-C cancels by itself; whatever ends this command must end the programs under test first.
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)

    async def verified(option: VerifyOptions) -> list[Verdict]:
        made = []
        async with turn, aclosing(verdicts(target, rules, option)) as found:
            async for verdict in found:
                seen(verdict)
                made.append(verdict)
        return sorted(made, key=lambda verdict: rules.index(verdict.rule))

    return [verdict for made in await asyncio.gather(*map(verified, options)) for verdict in made]


async def verify(target: Target, rules: Sequence[type[Rule]], options: VerifyOptions) -> list[Verdict]:
    async with aclosing(verdicts(target, rules, options)) as made:
        return [verdict async for verdict in made]


async def verdicts(
    target: Target, rules: Sequence[type[Rule]], options: VerifyOptions
) -> AsyncGenerator[Verdict, None]:
    """One verdict for each rule, as soon as it is known; those that start the program themselves come last."""
    kind = DriverVerifier if options.dra else Verifier
    async with kind(target, options) as verifier:
        for rule in sorted(rules, key=lambda rule: rule.alone):
            yield await _verdict(rule, verifier)


async def _verdict(rule: type[Rule], verifier: Verifier) -> Verdict:
    version = verifier.options.version
    if not rule.holds_for(version):
        return Verdict(rule, version, RuleStatus.NOT_APPLICABLE, seen=f"holds {rule.versions()}")
    if rule.thorough and not verifier.options.thorough:
        return Verdict(rule, version, RuleStatus.NOT_APPLICABLE, seen="takes minutes: only with --thorough")
    mark = verifier.current.mark if verifier.current else 0
    before, began = verifier.current, time.monotonic()
    status, expected, seen = await _checked(rule, verifier)
    calls = _lines(verifier, mark if before is verifier.current else 0) if status is not RuleStatus.PASS else ()
    if status is RuleStatus.NOT_APPLICABLE:
        calls = ()
    return Verdict(rule, version, status, expected, seen, calls, time.monotonic() - began)


async def _checked(rule: type[Rule], verifier: Verifier) -> tuple[RuleStatus, str, str]:
    failed = RuleStatus.FAIL if rule.level is Level.MUST else RuleStatus.WARNING
    try:
        await rule().check(verifier)
    except RuleViolated as error:
        return failed, error.expected, error.seen
    except (RuleNotApplicable, PluginNotRunning) as error:
        return RuleStatus.NOT_APPLICABLE, "", str(error)
    except ConfigError:
        raise
    except PlugwrightError as error:
        return failed, rule.title, str(error)
    except TimeoutError:
        return failed, rule.title, "no answer in time"
    except OSError as error:  # such as a file that went away
        return failed, rule.title, f"{type(error).__name__}: {error}"
    return RuleStatus.PASS, "", ""


def _lines(verifier: Verifier, mark: int) -> tuple[str, ...]:
    if verifier.current is None:
        return ()
    shown = [event for event in verifier.current.kubelet.recorded[mark:] if isinstance(event, Call | StateChange)]
    return tuple(_line(event) for event in shown[-_SHOWN_CALLS:])


def _line(event: Event) -> str:
    """The event as `plugwright kubelet` shows it."""
    if isinstance(event, Call):
        asked = f" [{some(event.asked, 4)}]" if event.asked else ""
        took = f" {event.seconds * 1000:.1f} ms" if event.outcome != "open" else ""
        return f"{event.method:<24} {event.resource}{asked}{took} {event.outcome}"
    assert isinstance(event, StateChange)
    return f"{event.kind:<24} {event.about}{f': {event.text}' if event.text else ''}"
