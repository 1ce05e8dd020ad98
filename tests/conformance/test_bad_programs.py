"""Programs that are no plugins: a clear verdict, everything ended, nothing left behind."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from plugwright.conformance import catalogue, namespace, program, runner, session
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError
from plugwright.protocol.paths import KubeletPaths

QUICK = TimeLimits(start=3, end=2)
PROGRAMS = {
    "never registers": ("sleep 600 # {dir}", "Register was never called"),
    "dies at once": ("echo no device; exit 7 # {dir}", "status 7; its last line was 'no device'"),
    "prints nothing": ("exit 0 # {dir}", "status 0; it wrote nothing"),
    "is killed": ("kill -9 $$ # {dir}", "SIGKILL"),
    "ignores SIGTERM": ("trap '' TERM; while :; do sleep 1; done # {dir}", "Register was never called"),
    "writes without an end": ("yes plugwright # {dir}", "its last line was 'plugwright'"),
    "forks": ("setsid sleep 600 & setsid sleep 601 & sleep 602 # {dir}", "Register was never called"),
}


def shell(script: str) -> Target:
    return Target(("sh", "-c", script))


async def verdict(target: Target, rule: str = "REG-01") -> Verdict:
    [made] = await runner.verify(target, [catalogue.find(rule)], VerifyOptions(limits=QUICK))
    return made


def with_variable(value: str) -> list[int]:
    """The processes that have this value in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and value.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_that_is_no_plugin_has_a_clear_verdict_and_is_ended(name: str, tmp_path: Path) -> None:
    script, reason = PROGRAMS[name]
    mark = f"PLUGWRIGHT_TEST={tmp_path}"
    target = Target(("sh", "-c", script), {"PLUGWRIGHT_TEST": str(tmp_path)})
    made = await verdict(target)
    assert made.status is RuleStatus.FAIL
    assert reason in made.seen
    assert with_variable(mark) == []


@pytest.mark.parametrize("script", ["true # {dir}", "false # {dir}", "exit 3 # {dir}"])
@pytest.mark.parametrize("patterns", [(), ("ALO", "END", "RES"), ("LST-03",)])
async def test_a_failed_start_is_one_failure_and_no_pass(script: str, patterns: tuple[str, ...]) -> None:
    verdicts = await runner.verify(shell(script), catalogue.select(patterns), VerifyOptions(limits=QUICK))
    found = [made for made in verdicts if made.status.is_proof]
    assert [(made.rule.id, made.status) for made in found] == [("REG-01", RuleStatus.FAIL)]
    assert {made.depends_on for made in verdicts if made.status is RuleStatus.NOT_CHECKED} == {"REG-01"}


async def test_a_program_that_goes_to_the_background_is_told_so() -> None:
    made = await verdict(shell("setsid sleep 600 & exit 0 # {dir}"), "REG-02")
    assert (made.status, "run on" in made.seen) == (RuleStatus.FAIL, True)


async def test_a_session_that_is_cancelled_at_its_end_has_ended_every_program() -> None:
    async def two_programs(started: asyncio.Event, programs: list[program.Program]) -> None:
        async with session.session(shell("sleep 600 # {dir}"), "1.37", QUICK) as opened:
            programs += [await opened.start_program(), await opened.start_program()]
            started.set()

    started, programs = asyncio.Event(), list[program.Program]()
    running = asyncio.create_task(two_programs(started, programs))
    await started.wait()
    while any(one.processes() for one in programs[:1]):  # the end of the first has begun
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [one.running for one in programs] == [False, False]


async def test_output_is_kept_up_to_a_limit(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path, tmp_path)
    started = await program.start(shell("head -c 10000000 /dev/zero | tr '\\0' x; echo end # {dir}"), paths)
    async with asyncio.timeout(60):
        await started.ends()
    await started.end()
    assert len(started.output) <= 64 * 1024
    assert started.output.endswith("end\n")


async def test_a_file_without_an_end_ends_the_program(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path, tmp_path)
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[0]) # {dir}"
    script = f"sleep 1; exec {sys.executable} -c '{code}'"
    started = await program.start(shell(script), paths)
    async with asyncio.timeout(60):
        await started.ends()
    await started.end()
    assert int(started.output) == 1 << 30


def test_a_program_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such program"):
        Target(("/no/such/plugin", "{dir}")).check()


@pytest.mark.parametrize(
    ("target", "needed"),
    [
        (Target(("plugin", "--dir={dir}")), False),
        (Target(("plugin",), {"WHERE": "{root}"}), False),
        (Target(("plugin",), directory_flag="--dir"), False),
        (Target(("plugin", "--quiet")), True),
    ],
)
def test_a_namespace_is_needed_without_a_placeholder(target: Target, needed: bool) -> None:
    assert target.needs_namespace is needed


@pytest.mark.parametrize(("flag", "words"), [("--dir", ("--dir", "{dir}")), ("--dir=", ("--dir={dir}",))])
def test_the_flag_for_the_directory_is_appended(flag: str, words: tuple[str, ...]) -> None:
    assert Target(("plugin",), directory_flag=flag).arguments == ("plugin", *words)


@pytest.mark.skipif(namespace.enter() is None, reason="mount namespaces are not allowed here")
async def test_a_program_with_built_in_paths_sees_the_directory_of_the_test(root: Path) -> None:
    (root / "device-plugins").mkdir()
    (root / "device-plugins" / "seen").touch()
    started = await program.start(shell("ls /var/lib/kubelet/device-plugins"), KubeletPaths(root, root))
    async with asyncio.timeout(60):
        await started.ends()
    await started.end()
    assert started.output.split() == ["seen"]
    assert not os.path.ismount("/var/lib/kubelet")
