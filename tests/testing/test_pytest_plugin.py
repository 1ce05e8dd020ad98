"""The fixtures in another project, where pytest finds them by plugwright's entry point."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

from tests.cli.processes import Ended, ended
from tests.testing.projects import PYTEST

PROGRAM = str(Path(__file__).parents[2] / "examples" / "tape" / "tape.py")
CONFIGURED = "[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


async def outcome(project: Path, mode: str, tests: str) -> Ended:
    """The result of `pytest` in a project with one file of tests."""
    (project / "pytest.ini").write_text(CONFIGURED.format(mode=mode))
    (project / "test_it.py").write_text(dedent(tests))
    return await ended([*PYTEST, "--strict-markers", str(project)])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    [ours] = [point for point in entry_points(group="pytest11") if point.name == "plugwright"]
    assert ours.value == "plugwright.testing.pytest_plugin"


async def test_fixtures_work_in_strict_mode(tmp_path: Path) -> None:
    tests = f"""
        import pytest
        from plugwright.testing import KubeletSettings

        pytestmark = pytest.mark.asyncio

        async def test_process(kubelet, plugin_process):
            plugin = await plugin_process([{sys.executable!r}, {PROGRAM!r}], "example.com/tape")
            assert plugin.returncode is None
            assert await kubelet.allocatable("example.com/tape") == 2

        @pytest.mark.kubelet(version="1.30", numa=2)
        async def test_marked(kubelet):
            assert (kubelet.settings.version, kubelet.settings.numa) == ("1.30", 2)

        async def test_unmarked(kubelet):
            assert (kubelet.settings.version, kubelet.settings.numa) == ("1.36", 1)

        class TestOwnSettings:
            @pytest.fixture
            def kubelet_settings(self):
                return KubeletSettings(strict=True)

            async def test_settings(self, kubelet):
                assert kubelet.settings.strict
    """
    done = await outcome(tmp_path, "strict", tests)
    assert "4 passed" in done.out, done.out


async def test_failure_is_one_line_with_the_output_of_the_plugin(tmp_path: Path) -> None:
    tests = f"""
        import pytest

        @pytest.mark.kubelet(version="0.9")
        async def test_impossible(kubelet):
            pass

        async def test_broken(plugin_process):
            await plugin_process(["sh", "-c", "echo looking; echo no drive; exit 7"], "example.com/tape")

        async def test_wrong(plugin_process):
            plugin = await plugin_process([{sys.executable!r}, {PROGRAM!r}])
            await plugin.until("registered")
            assert False, "mine"
    """
    out = (await outcome(tmp_path, "auto", tests)).out
    assert "2 failed, 1 error" in out
    assert "ConfigError: kubelet version must be 1.26 to 1.37" in out
    assert "ended before it listed example.com/tape, with status 7 (no drive)" in out
    assert "looking\nno drive\n" in out
    assert "AssertionError: mine" in out
    assert "registered" in out.partition("mine")[2], out


async def test_fixtures_without_pytest_asyncio_name_the_extra(tmp_path: Path) -> None:
    (tmp_path / "pytest_asyncio.py").write_text("raise ImportError")
    (tmp_path / "test_it.py").write_text("def test_kubelet(kubelet): pass\ndef test_other(): pass\n")
    command = [*PYTEST, "--strict-markers", "-p", "no:asyncio", str(tmp_path)]
    done = await ended(command, {"PYTHONPATH": str(tmp_path)})
    assert "1 passed, 1 error" in done.out, done
    assert "the fixture 'kubelet' needs pytest-asyncio: pip install 'plugwright[testing]'" in done.out


async def test_log_lines_have_their_facts_in_the_report(tmp_path: Path) -> None:
    tests = """
        import logging
        from plugwright import Allocation, Device, Plugin
        from plugwright.testing import pod_requesting, running

        class Tape(Plugin):
            resource = "example.com/tape"

            def discover(self):
                return [Device("st0")]

            def allocate(self, devices):
                raise OSError("bus error")

        async def test_it(tmp_path):
            logging.getLogger("other").warning("a line of another package", extra={"secret": "x"})
            async with running(Tape(), tmp_path) as kubelet:
                await kubelet.admit(pod_requesting({"example.com/tape": 1}))
    """
    done = await outcome(tmp_path, "auto", tests)
    assert "plugin method failed  resource=example.com/tape error=" in done.out, done.out
    assert "OSError: bus error at test_it.py:13 in allocate" in done.out
    assert "a line of another package" in done.out
    assert "secret" not in done.out.partition("Captured log call")[2]


async def test_a_finding_of_the_fixture_is_an_error_unless_the_marker_allows_it(tmp_path: Path) -> None:
    tests = """
        import pytest
        from plugwright.testing import pod_requesting

        async def test_found(kubelet):
            await kubelet.admit(pod_requesting({"example.com/gone": 1}))

        @pytest.mark.kubelet(allowed=["3.63"])
        async def test_allowed(kubelet):
            await kubelet.admit(pod_requesting({"example.com/gone": 1}))
    """
    done = await outcome(tmp_path, "auto", tests)
    assert "2 passed, 1 error" in done.out, done.out
    assert "no plugin ever listed example.com/gone" in done.out


async def test_an_async_test_without_the_automatic_mode_names_the_missing_line(tmp_path: Path) -> None:
    tests = """
        from plugwright.testing import pod_requesting

        async def test_it():
            pass
    """
    done = await outcome(tmp_path, "strict", tests)
    assert "1 failed" in done.out, done.out
    assert 'add to pyproject.toml, below [tool.pytest.ini_options]:  asyncio_mode = "auto"' in done.out
