"""Ring 3: plugwright on a machine with an NVIDIA GPU. Collected only when asked for: `pytest tests/gpu`.

Where there is no GPU the tests are skipped and say why; with PLUGWRIGHT_REQUIRE_GPU=1 they fail. No setting of the card
is ever changed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugwright.plugins.nvidia.driver import DriverGone, Reading
from plugwright.plugins.nvidia.nvml import Nvml

_HERE = Path(__file__).parent
_SEEN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = []


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Whoever runs all tests wants those that need no hardware."""
    asked = (Path(each.partition("::")[0]).absolute() for each in config.args)
    return None if any(path == _HERE or _HERE in path.parents for path in asked) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_SEEN]:
        terminalreporter.section("real GPU")
        for line in config.stash[_SEEN]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def seen(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Remembers a line for the end of the run: what was seen on this machine."""
    return pytestconfig.stash[_SEEN].append


@pytest.fixture(scope="session")
def driver() -> Iterator[Nvml]:
    nvml = Nvml()
    try:
        gpus = nvml.read().gpus
    except DriverGone as error:
        _cannot(str(error))
    if not gpus:
        _cannot("the driver knows of no GPU")
    yield nvml
    nvml.close()


@pytest.fixture(scope="session")
def reading(driver: Nvml, seen: Callable[[str], None]) -> Reading:
    found = driver.read()
    seen(f"driver {found.driver}, CUDA {found.cuda}: {', '.join(gpu.model for gpu in found.gpus)}")
    return found


def _cannot(why: str) -> None:
    if os.environ.get("PLUGWRIGHT_REQUIRE_GPU"):
        pytest.fail(f"no GPU to test with: {why}")
    pytest.skip(f"no GPU to test with: {why}")
