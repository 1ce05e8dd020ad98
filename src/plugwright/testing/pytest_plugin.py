"""The fixtures `kubelet` and `plugin_process`, in every project with plugwright and pytest-asyncio.

pytest loads this module in every such project, so everything else is loaded by the first test with a fixture.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from plugwright import testing

__all__ = [
    "kubelet",
    "kubelet_settings",
    "plugin_process",
    "pytest_configure",
    "pytest_pyfunc_call",
    "pytest_sessionstart",
]

_MARKER = "kubelet(version=..., numa=..., policy=..., ...): the settings of the emulated kubelet, as KubeletSettings"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Adds the facts of `extra` to log lines in pytest's reports; those of other packages stay unchanged."""
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    for name in ("caplog_handler", "report_handler", "log_cli_handler", "log_file_handler"):
        handler = getattr(plugin, name, None)
        if isinstance(handler, logging.Handler) and handler.formatter is not None:
            handler.setFormatter(_WithFacts(handler.formatter))


class _WithFacts(logging.Formatter):
    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        line = self._inner.format(record)
        if not record.name.startswith("plugwright"):
            return line
        from plugwright.sdk.logs import facts, shown_facts

        first, newline, rest = line.partition("\n")
        fields = shown_facts(facts(record))
        return f"{first}  {fields}{newline}{rest}" if fields else line


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Names the missing configuration line if pytest-asyncio is installed but not enabled."""
    try:
        return (yield)
    except pytest.fail.Exception as error:
        is_ours = any(
            getattr(value, "__module__", "").startswith("plugwright") for value in vars(pyfuncitem.module).values()
        )
        if inspect.iscoroutinefunction(pyfuncitem.obj) and is_ours and "async def functions" in str(error.msg):
            hint = 'add to pyproject.toml, below [tool.pytest.ini_options]:  asyncio_mode = "auto"'
            pytest.fail(f"an async test needs pytest-asyncio's automatic mode: {hint}", pytrace=False)
        raise


def _fixture(function: Callable[..., AsyncIterator[object]]) -> object:
    """An async fixture in either mode of pytest-asyncio; without pytest-asyncio, it fails and names the extra."""
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
    """The settings of the `kubelet` marker; a project can override them by a fixture of this name."""
    marker = request.node.get_closest_marker("kubelet")
    return testing.KubeletSettings(**(marker.kwargs if marker else {}))


@_fixture
async def kubelet(tmp_path: Path, kubelet_settings: "testing.KubeletSettings") -> AsyncIterator["testing.Kubelet"]:
    """An emulated kubelet without plugins; its files are in `tmp_path/kubelet`."""
    from plugwright.testing.harness import kubelet_root

    with kubelet_root(tmp_path) as root:
        async with testing.Kubelet(root, kubelet_settings) as running:
            yield running
            running.check_findings()


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
