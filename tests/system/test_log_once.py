"""A problem is logged when it begins, when its reason changes, and when it comes back."""

import logging

import pytest

from plugwright.system.log_once import LogOnce

logger = logging.getLogger("plugwright.test_log_once")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["error"] for record in caplog.records if record.levelno == logging.WARNING]


def _warn(once: LogOnce, reason: str, key: str = "") -> None:
    once.warning("not saved", reason, key=key, extra={"error": f"{key}{reason}"})


def test_a_repeated_reason_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logger)
    _warn(once, "disk full")
    _warn(once, "disk full")
    assert _warnings(caplog) == ["disk full"]


def test_a_repeated_reason_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logger)
    with caplog.at_level(logging.DEBUG, logger.name):
        _warn(once, "disk full")
        _warn(once, "disk full")
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]


def test_a_changed_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logger)
    for reason in ("disk full", "read-only", "disk full"):
        _warn(once, reason)
    assert _warnings(caplog) == ["disk full", "read-only", "disk full"]


def test_a_problem_that_comes_back_after_a_recovery_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logger)
    _warn(once, "disk full")
    assert once.recovered()
    _warn(once, "disk full")
    assert _warnings(caplog) == ["disk full", "disk full"]


def test_a_recovery_is_reported_once_and_only_after_a_problem() -> None:
    once = LogOnce(logger)
    assert not once.recovered()
    _warn(once, "disk full")
    assert once.recovered()
    assert not once.recovered()


def test_keys_have_a_reason_each(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logger)
    for key in ("gpu0 ", "gpu1 ", "gpu0 ", "gpu1 "):
        _warn(once, "too hot", key)
    assert once.recovered("gpu0 ")
    _warn(once, "too hot", "gpu0 ")
    _warn(once, "too hot", "gpu1 ")
    assert _warnings(caplog) == ["gpu0 too hot", "gpu1 too hot", "gpu0 too hot"]


def test_the_number_of_keys_is_bounded_and_the_least_recent_one_is_forgotten() -> None:
    once = LogOnce(logger, keys=2)
    assert once.is_news("too hot", "gpu0")
    assert once.is_news("too hot", "gpu1")
    assert not once.is_news("too hot", "gpu0")
    assert once.is_news("too hot", "gpu2")
    assert not once.is_news("too hot", "gpu0")
    assert once.is_news("too hot", "gpu1")


def test_problems_of_keys_that_are_not_kept_are_over() -> None:
    once = LogOnce(logger)
    once.is_news("too hot", "gpu0")
    once.is_news("too hot", "gpu1")
    once.keep_only({"gpu1"})
    assert once.is_news("too hot", "gpu0")
    assert not once.is_news("too hot", "gpu1")


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_a_line_has_its_level_and_the_place_that_logged_it(caplog: pytest.LogCaptureFixture, level: str) -> None:
    with caplog.at_level(logging.INFO, logger.name):
        getattr(LogOnce(logger), level)("not saved", "disk full")
    (record,) = caplog.records
    assert record.levelname.lower() == level
    assert record.funcName == "test_a_line_has_its_level_and_the_place_that_logged_it"
