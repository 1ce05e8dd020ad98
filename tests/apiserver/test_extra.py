"""Libraries that an extra installs."""

import pytest

from plugwright.apiserver.extra import check_installed
from plugwright.errors import ConfigError


def test_a_missing_library_is_named_with_the_extra_that_installs_it() -> None:
    with pytest.raises(ConfigError, match=r"^running\(\) needs no_such: pip install 'plugwright\[testing\]'$"):
        check_installed("running()", ("json", "no_such"), "testing")


def test_what_is_installed_is_not_reported() -> None:
    check_installed("plugwright up")
