"""The fixtures `kubelet` and `plugin_process`, in every project that has plugwright and pytest-asyncio.

pytest loads this module in every such project, so everything else is loaded by the first test that uses a fixture.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from plugwright import testing

__all__ = ["kubelet", "kubelet_settings", "plugin_process", "pytest_configure"]

_MARKER = "kubelet(version=..., numa=..., policy=..., ...): the settings of the emulated kubelet, as KubeletSettings"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def _fixture(function: Callable[..., AsyncIterator[object]]) -> object:
    """An async fixture in either mode of pytest-asyncio; without pytest-asyncio, one that fails and names the extra."""
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture(name=function.__name__)(_fail_without_asyncio)
    return pytest_asyncio.fixture(function)


def _fail_without_asyncio(request: pytest.FixtureRequest) -> None:
    text = f"the fixture {request.fixturename!r} needs pytest-asyncio: pip install 'plugwright[testing]'"
    pytest.fail(text, pytrace=False)


@pytest.fixture
def kubelet_settings(request: pytest.FixtureRequest) -> "testing.KubeletSettings":
    """The settings of the `kubelet` marker; a project may define a fixture of this name instead."""
    marker = request.node.get_closest_marker("kubelet")
    return testing.KubeletSettings(**(marker.kwargs if marker else {}))


@_fixture
async def kubelet(tmp_path: Path, kubelet_settings: "testing.KubeletSettings") -> AsyncIterator["testing.Kubelet"]:
    """An emulated kubelet without plugins; its files are in `tmp_path/kubelet`."""
    from plugwright.testing.harness import kubelet_root

    with kubelet_root(tmp_path) as root:
        async with testing.Kubelet(root, kubelet_settings) as running:
            yield running


@_fixture
async def plugin_process(
    kubelet: "testing.Kubelet",
) -> AsyncIterator[Callable[..., Awaitable["testing.PluginProcess"]]]:
    """Starts plugins against `kubelet`: `await plugin_process(command, *resources, env=…)`; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(
            command: Sequence[str | Path], *resources: str, env: Mapping[str, str] | None = None
        ) -> "testing.PluginProcess":
            return await stack.enter_async_context(testing.plugin_process(kubelet, command, *resources, env=env))

        yield start
