"""Tests on a machine with an NVIDIA GPU, collected only by `pytest tests/gpu`.

Without a GPU the tests are skipped with the reason; with PLUGWRIGHT_REQUIRE=gpu they fail. No setting of the GPU is
ever changed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.requirements import unavailable

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.nvml import Nvml

_HERE = Path(__file__).parent
_SEEN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = []


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """A run of all tests leaves these out, because they need hardware."""
    paths = (Path(argument.partition("::")[0]).absolute() for argument in config.args)
    return None if any(path == _HERE or _HERE in path.parents for path in paths) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_SEEN]:
        terminalreporter.section("real GPU")
        for line in config.stash[_SEEN]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def seen(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Adds a line about this machine to the summary of the run."""
    return pytestconfig.stash[_SEEN].append


@pytest.fixture(scope="session")
def driver() -> Iterator[Nvml]:
    nvml = Nvml()
    try:
        gpus = nvml.read().gpus
    except DriverGone as error:
        unavailable("gpu", f"no GPU to test with: {error}")
    if not gpus:
        unavailable("gpu", "no GPU to test with: the driver has no GPU")
    yield nvml
    nvml.close()


@pytest.fixture(scope="session")
def snapshot(driver: Nvml, seen: Callable[[str], None]) -> GpuSnapshot:
    current = driver.read()
    seen(f"driver {current.driver}, CUDA {current.cuda}: {', '.join(gpu.model for gpu in current.gpus)}")
    return current
