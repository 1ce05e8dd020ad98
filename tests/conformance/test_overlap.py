"""Several instances prove rules at the same time; the verdicts are those of a single instance."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.verifying import PATIENT, driver_options, small_driver, small_plugin

from plugwright.conformance import catalogue, overlap, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError

IDS = ("REG-01", "REG-14", "REG-16", "LST-01", "ALO-01", "END-05", "END-08")
OPTIONS = VerifyOptions(limits=PATIENT, instances=3)


def statuses(verdicts: list[Verdict]) -> list[tuple[str, RuleStatus]]:
    return [(verdict.rule.id, verdict.status) for verdict in verdicts]


def once_at_a_time(target: Target, lock: Path) -> Target:
    """The program as one that ends at its start while another instance runs on the machine."""
    return replace(target, command=("flock", "--nonblock", "--no-fork", str(lock), *target.command))


def counted(target: Target, log: Path) -> Target:
    """The program as one that writes a line to the file at each start."""
    return replace(target, command=("sh", "-c", f'echo >> {log}; exec "$@"', "sh", *target.command))


async def test_each_rule_gets_the_verdict_of_a_single_instance(tmp_path: Path) -> None:
    made = await runner.verify(counted(small_plugin(), tmp_path / "starts"), catalogue.select(IDS), OPTIONS)
    assert sorted(statuses(made)) == sorted((rule_id, RuleStatus.PASS) for rule_id in IDS)
    assert len((tmp_path / "starts").read_text().splitlines()) > 3


async def test_a_verdict_does_not_wait_for_the_rules_before_it() -> None:
    made = await runner.verify(small_plugin(), catalogue.select(["REG-16", "LST-01"]), OPTIONS)
    assert [verdict.rule.id for verdict in made] == ["LST-01", "REG-16"]


async def test_a_program_that_runs_only_once_gets_the_same_verdicts(tmp_path: Path) -> None:
    target = once_at_a_time(small_plugin(), tmp_path / "lock")
    made = await runner.verify(target, catalogue.select(IDS), OPTIONS)
    assert sorted(statuses(made)) == sorted((rule_id, RuleStatus.PASS) for rule_id in IDS)


@pytest.mark.parametrize("instances", [1, 3])
async def test_a_finding_is_reported_once_and_last(instances: int) -> None:
    made = await runner.verify(
        small_plugin("response-per-device"),
        catalogue.select(["ALO-01", "ALO-03", "REG-14", "END-05"]),
        replace(OPTIONS, instances=instances),
    )
    found = [verdict.rule.id for verdict in made if verdict.status is RuleStatus.FAIL]
    assert (found, len(made)) == (["ALO-03"], 4)
    assert instances == 1 or made[-1].rule.id == "ALO-03"


async def test_drivers_overlap_too() -> None:
    ids = ["DRG-01", "DRG-10", "PRP-01", "DST-01", "DRE-03"]
    made = await runner.verify(small_driver(), catalogue.select(ids, dra=True), driver_options())
    assert sorted(statuses(made)) == sorted((rule_id, RuleStatus.PASS) for rule_id in ids)


async def test_an_error_of_the_operators_command_ends_the_run() -> None:
    options = replace(OPTIONS, fail="exit 7", recover="exit 7")
    with pytest.raises(ConfigError, match="ended with status 7"):
        await runner.verify(small_plugin(), catalogue.select(["HOT-01", "REG-14", "END-05"]), options)


def test_rules_that_share_an_observation_are_in_one_group() -> None:
    for rules in (catalogue.RULES, catalogue.DRIVER_RULES):
        made = overlap.groups(rules)
        assert sorted(rule.id for group in made for rule in group) == sorted(rule.id for rule in rules)
        assert not any(rule.alone or rule.waits for rule in made[0])
        for group in made[1:]:
            assert len({rule.observation or rule.id for rule in group}) == 1


def test_the_longest_waits_begin_first() -> None:
    waits = [max(rule.waits for rule in group) for group in overlap.groups(catalogue.RULES)[1:]]
    assert waits == sorted(waits, reverse=True)
