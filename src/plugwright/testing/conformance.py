"""The contract test as one line of an author's own test; `conformance` contains the checks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plugwright.apiserver.extra import check_installed
from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import Report, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.kubelet.versions import DEFAULT_VERSION

__all__ = ["TimeLimits", "assert_conformance"]


async def assert_conformance(
    command: Sequence[str | Path],
    version: str = DEFAULT_VERSION,
    *,
    env: Mapping[str, str] | None = None,
    rules: Sequence[str] = (),
    known: Collection[str] = (),
    dra: bool = False,
    options: VerifyOptions | None = None,
) -> list[Verdict]:
    """Verifies the program; raises AssertionError with each failure and crash missing in `known`.

    `{dir}` in the command and in `env` is the device-plugins directory, `{root}` its parent, `{socket}` is
    kubelet.sock. `rules` are ids, groups or patterns; without any, all rules are checked. Returns every verdict. A run
    in which nothing could be checked also raises AssertionError.

    With `dra` the program is a DRA driver; the placeholders are then those of `plugwright verify --dra`, and the extra
    `cluster` must be installed, for the API server.
    """
    __tracebackhide__ = True
    target = Target(tuple(map(str, command)), dict(env or {}))
    target.check()
    options = options or VerifyOptions(version)
    if dra:
        check_installed("assert_conformance(dra=True)")
        options = replace(options, dra=True)
    verdicts = await runner.verify(target, catalogue.select(rules, dra=options.dra), options)
    failed = [verdict for verdict in verdicts if verdict.breaks and verdict.rule.id not in known]
    if failed:
        raise AssertionError("\n".join(_text(verdict) for verdict in failed))
    if not Report(str(target), tuple(verdicts)).verified:
        raise AssertionError("nothing was verified: no rule could be checked")
    return verdicts


def _text(verdict: Verdict) -> str:
    rule = verdict.rule
    calls = "".join(f"\n    {line}" for line in (*verdict.calls, *verdict.output))
    seen = f"  expected {verdict.expected}\n  seen     {verdict.seen}{calls}"
    return f"{rule.id} {rule.title}\n{seen}\n  fix     {rule.fix}"
