"""`assert_conformance`: one line of an author's test."""

import pytest
from tests.conformance.verifying import PATIENT, small_driver, small_plugin

from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError
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


async def test_a_driver_is_verified_in_the_same_way() -> None:
    verdicts = await assert_conformance(small_driver().command, rules=["PRP-05", "RGT-04"], dra=True, options=OPTIONS)
    assert [verdict.rule.id for verdict in verdicts] == ["PRP-05", "RGT-04"]
    command = small_driver("names-subrequest").command
    with pytest.raises(AssertionError, match=r"PRP-05 Devices of a subrequest.*\n.*\n  seen     verified/small"):
        await assert_conformance(command, rules=["PRP-05"], dra=True, options=OPTIONS)


async def test_what_a_driver_cannot_be_asked_is_an_error() -> None:
    with pytest.raises(ConfigError, match="rules must be ids"):
        await assert_conformance(small_driver().command, rules=["XYZ"], dra=True)
