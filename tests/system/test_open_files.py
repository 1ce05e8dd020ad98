"""The limit of open files, raised for programs that need many."""

import resource
import subprocess
import sys

import pytest

from plugwright.errors import ConfigError
from plugwright.system.open_files import ensure_open_files

_SCRIPT = """
import resource
from plugwright.system.open_files import ensure_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
ensure_open_files({needed}, "8 nodes")
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("needed", "limits"), [(50, "64 200"), (100, "200 200")])
def test_a_soft_limit_that_is_too_low_is_raised_to_the_hard_one(needed: int, limits: str) -> None:
    command = [sys.executable, "-c", _SCRIPT.format(needed=needed)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == limits


def test_more_files_than_the_hard_limit_allows_are_refused() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this machine has no limit")
    with pytest.raises(ConfigError, match=f"8 nodes need about {hard + 1:,} open files, and this process may have"):
        ensure_open_files(hard + 1, "8 nodes")
