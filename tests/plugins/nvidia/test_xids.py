"""The table of Xids: one row per code, and actions that fit NVIDIA's catalogue."""

import pytest

from plugwright.plugins.nvidia.xids import NEEDS_RESET, XIDS, XidAction


def test_rows_are_in_order_of_their_codes() -> None:
    assert list(XIDS) == sorted(XIDS)
    assert all(code == xid.code for code, xid in XIDS.items())


@pytest.mark.parametrize(("code", "action"), [(13, XidAction.IGNORE), (48, XidAction.RESET), (54, XidAction.FAIL)])
def test_a_code_has_the_action_of_the_catalogue(code: int, action: XidAction) -> None:
    assert XIDS[code].action is action


def test_codes_that_need_a_reset_are_those_with_that_action() -> None:
    assert {48, 62, 64, 74, 79, 95, 119, 120, 140} <= NEEDS_RESET
    assert {code for code, xid in XIDS.items() if xid.action is XidAction.RESET} == NEEDS_RESET
