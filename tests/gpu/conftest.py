"""Tests on a machine with an NVIDIA GPU, collected only by `pytest tests/gpu`.

Without a GPU the tests are skipped with the reason; with PLUGWRIGHT_REQUIRE=gpu they fail. No setting of the GPU is
ever changed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.requirements import unavailable

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.nvml import Nvml

BEGIN, END = "<!-- cases -->\n", "<!-- end of cases -->\n"
Row = Callable[[str, int, str], None]
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


@pytest.fixture(scope="session")
def row(seen: Callable[[str], None]) -> Iterator[Row]:
    rows: list[str] = []

    def add(case: str, peak: int, outcome: str) -> None:
        seen(f"vgpu, {case}: at most {peak} MiB by the driver's count; {outcome}")
        rows.append(f"| {case} | {peak} | {outcome} |")

    yield add
    if path := os.environ.get("PLUGWRIGHT_VGPU_CASES"):
        title = "| in a share of 4096 MiB unless said | at most, MiB | |"
        page = Path(path).read_text(encoding="utf-8") if Path(path).exists() else f"{BEGIN}{END}"
        table = "\n".join([title, "|---|---|---|", *rows, ""])
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        Path(path).write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")
