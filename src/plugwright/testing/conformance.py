"""The contract test as one line of an author's own test; what is checked is `conformance`.

A DRA driver needs an API server beside the kubelet, which the command line has: it is run, and its report is read.
"""

import asyncio
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError
from plugwright.kubelet.versions import DEFAULT_VERSION
from plugwright.system import processes

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
    """Verifies the program; raises AssertionError with each MUST rule that failed and is not `known`.

    `{dir}` in the command and in `env` is the device-plugins directory, `{root}` the one above it, `{socket}` is
    kubelet.sock. `rules` are ids, groups or patterns; without any, all rules are checked. Returns every verdict.

    With `dra` the program is a DRA driver; the placeholders are then those of `plugwright verify --dra`.
    """
    __tracebackhide__ = True
    target = Target(tuple(map(str, command)), dict(env or {}))
    target.check()
    options = options or VerifyOptions(version)
    if dra:
        verdicts = await _driver_verdicts(target, rules, options)
    else:
        verdicts = await runner.verify(target, catalogue.select(rules), options)
    failed = [verdict for verdict in verdicts if verdict.breaks and verdict.rule.id not in known]
    if failed:
        raise AssertionError("\n".join(_text(verdict) for verdict in failed))
    return verdicts


async def _driver_verdicts(target: Target, rules: Sequence[str], options: VerifyOptions) -> list[Verdict]:
    verifying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "plugwright", "verify", "--dra", "--output", "json"),
        *_flags(target, rules, options),
        *("--", *target.command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
        start_new_session=True,
    )
    try:
        written, problem = await verifying.communicate()
    finally:
        await processes.end(verifying, grace=5.0)
    if verifying.returncode not in (0, 1):
        raise ConfigError(problem.decode(errors="replace").strip().rpartition("Error: ")[2])
    return [_verdict(found) for found in json.loads(written)["verdicts"]]


def _flags(target: Target, rules: Sequence[str], options: VerifyOptions) -> list[str]:
    repeated = {
        "--rules": rules,
        "--env": [f"{name}={value}" for name, value in target.environment.items()],
        "--cdi-dir": options.cdi_dirs,
        "--kubelet": [options.version],
        "--timeout": [options.limits.start],
        "--host-root": [options.host_root],
    }
    flags = [f"{flag}={value}" for flag, values in repeated.items() for value in values]
    return [*flags, "--thorough"] if options.thorough else flags


def _verdict(found: Mapping[str, Any]) -> Verdict:
    rule, status = catalogue.find(found["rule"]), RuleStatus(found["status"])
    calls = tuple(found["calls"])
    return Verdict(
        rule, found["kubelet"], status, found["expected"], found["seen"], calls, found["seconds"], found["known"]
    )


def _text(verdict: Verdict) -> str:
    rule = verdict.rule
    calls = "".join(f"\n    {line}" for line in verdict.calls)
    seen = f"  expected {verdict.expected}\n  seen     {verdict.seen}{calls}"
    return f"{rule.id} {rule.title}\n{seen}\n  mend     {rule.mend}"
