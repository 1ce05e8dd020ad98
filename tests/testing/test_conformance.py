"""`assert_conformance`: one line of a plugin author's test."""

import pytest
from tests.conformance.verifying import PATIENT, small_plugin

from plugwright.conformance.verifier import VerifyOptions
from plugwright.testing.conformance import assert_conformance

OPTIONS = VerifyOptions(limits=PATIENT)


async def test_a_plugin_that_keeps_the_rules_passes() -> None:
    verdicts = await assert_conformance(small_plugin().command, rules=["ALO", "LST-03"], options=OPTIONS)
    assert {verdict.rule.id for verdict in verdicts} >= {"ALO-01", "LST-03"}


async def test_a_rule_that_is_broken_is_an_assertion_with_what_was_seen() -> None:
    command = small_plugin("response-per-device").command
    with pytest.raises(AssertionError, match=r"ALO-03 Allocate.*\n.*\n  seen     2 responses"):
        await assert_conformance(command, rules=["ALO-03"], options=OPTIONS)
    await assert_conformance(command, rules=["ALO-03"], known=["ALO-03"], options=OPTIONS)
