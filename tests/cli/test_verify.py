"""`plugwright verify` as a program: its report, its exit codes, and its documents."""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.processes import Ended, ended, python, running
from tests.kubernetes.first_hour import Terminal

PLUGIN = str(Path(__file__).parents[1] / "conformance" / "plugin.py")
DRIVER = str(Path(__file__).parents[1] / "conformance" / "driver.py")


async def verify(*arguments: str) -> "Ended":
    return await ended(python("-m", "plugwright", "verify", *arguments))


def small(mutant: str = "") -> tuple[str, ...]:
    return ("--", sys.executable, PLUGIN, "--root", "{root}", *(("--mutant", mutant) if mutant else ()))


async def test_a_plugin_that_keeps_the_rules_passes() -> None:
    done = await verify("--rules", "ANS", "--rules", "ALO-03", *small())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "passed"


async def test_a_plugin_that_breaks_one_fails_with_what_was_seen() -> None:
    done = await verify("--rules", "ALO-03", *small("response-per-device"))
    assert done.code == 1
    assert "seen      2 responses" in done.out
    assert "plugwright verify --explain ALO-03" in done.out


async def test_a_should_that_is_broken_is_a_warning() -> None:
    done = await verify("--rules", "ALO-05", *small("allocates-unknown"))
    assert (done.code, "1 warning" in done.out) == (0, True)


async def test_each_rule_has_a_line_with_its_time_off_a_terminal_too() -> None:
    done = await verify("--rules", "LST-03", "--rules", "REG-23", *small())
    lines = [line for line in done.out.splitlines() if line.startswith("1.36")]
    assert [re.sub(r" +\d+\.\d\d s .*", "", line) for line in lines] == [
        "1.36   REG-23  not applicable",
        "1.36   LST-03  pass",
    ]


def test_on_a_terminal_a_failed_registration_stays_in_sight(tmp_path: Path) -> None:
    program = shlex.join(python("-m", "plugwright", "verify", "--rules", "LST,ALO", "--", "false"))
    shown = Terminal(tmp_path, os.environ).run(f"sh -c {shlex.quote(f'{program} || true')}")
    lines = re.split(r"[\r\n]+", shown)
    assert [line for line in lines if len(line) > 100] == []
    assert [line[:28].split() for line in lines if line.startswith("1.36")] == [["1.36", "REG-01", "fail"]]
    assert "not checked, REG-01 failed: LST-01, LST-02" in shown
    assert len(lines) < 40


async def test_several_reports_are_written_in_one_run(tmp_path: Path) -> None:
    reports = [f"{kind}={tmp_path / kind}" for kind in ("junit", "sarif", "json", "markdown", "github")]
    flags = [word for report in reports for word in ("--report", report)]
    done = await verify("--rules", "ALO-03", "--source", "main.go", *flags, *small("response-per-device"))
    assert (done.code, done.out.splitlines()[-1]) == (1, "failed")
    assert ElementTree.parse(tmp_path / "junit").getroot().tag == "testsuites"
    assert json.loads((tmp_path / "sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "ALO-03"
    assert json.loads((tmp_path / "json").read_text())["outcome"] == "failed"
    assert (tmp_path / "markdown").read_text().startswith("## plugwright verify: failed")
    assert (tmp_path / "github").read_text().startswith("::error title=ALO-03")


@pytest.mark.parametrize("output", ["text", "json", "junit", "sarif", "markdown", "github"])
async def test_a_run_that_proves_nothing_exits_with_2_in_every_format(output: str) -> None:
    done = await verify("--rules", "HOT", "--output", output, *small())
    assert done.code == 2


@pytest.mark.parametrize("program", ["true", "false"])
@pytest.mark.parametrize("flags", [(), ("--rules", "ALO"), ("--dra",), ("--dra", "--rules", "PRP")])
async def test_a_program_that_does_nothing_is_one_failure(program: str, flags: tuple[str, ...]) -> None:
    done = await verify(*flags, "--output", "json", "--", program, "{root}")
    counts = json.loads(done.out)["counts"]
    assert (done.code, counts["pass"], counts["fail"], counts["warning"], counts["error"]) == (1, 0, 1, 0, 0)


async def test_parameters_are_in_the_claims_of_a_driver(tmp_path: Path) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text("apiVersion: example.com/v1\nkind: PartConfig\nspeed: 3\n")
    command = ("--", sys.executable, DRIVER, "--root", "{root}")
    done = await verify("--dra", "--rules", "PRP-01", "--parameters", str(parameters), *command)
    assert (done.code, "this driver takes no parameters" in done.out) == (1, True)


@pytest.mark.parametrize("output", ["json", "junit", "sarif", "markdown"])
async def test_documents_are_on_the_standard_output_alone(output: str) -> None:
    done = await verify("--rules", "REG-01", "--output", output, *small())
    assert done.code == 0
    assert re.search(r"REG-01  pass +\d+\.\d\d s  The program registers", done.err)
    if output == "junit":
        assert ElementTree.fromstring(done.out).tag == "testsuites"
    elif output == "markdown":
        assert done.out.startswith("## plugwright verify: passed")
    else:
        assert json.loads(done.out)


async def test_a_baseline_is_written_and_makes_the_same_pass(tmp_path: Path) -> None:
    known = str(tmp_path / "known.txt")
    command = ("--rules", "ALO-03", *small("response-per-device"))
    assert (await verify("--write-baseline", known, *command)).code == 1
    done = await verify("--baseline", known, *command)
    assert (done.code, "1 of them known" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give the command"),
        (("--", "/no/such/plugin", "{dir}"), "no such program"),
        (("--kubelet", "1.99", *small()), "kubelet version must be"),
        (("--rules", "XYZ", *small()), "rules must be ids"),
        (("--fail-command", "true", *small()), "need each other"),
        (("--env", "novalue", *small()), "--env must be NAME=VALUE"),
        (("--explain", "REG-77"), "rule must be one"),
        (("--dra", "--rules", "REG-01", *small()), "rules must be ids"),
        (("--dra", "--attach", "/tmp", "--kubelet", "all"), "takes one --kubelet"),
        (("--rules", "ALO", "--exclude", "ALO", *small()), "leave no rule"),
        (("--report", "html=x", *small()), "must be FORMAT=FILE"),
        (("--report", "junit=/no/such/x", *small()), "no such directory"),
        (("--bind", "/no/such:/dev", *small()), "no such file or directory"),
        (("--parameters", DRIVER, *small()), "use it with --dra"),
        (("--dra", "--parameters", "/dev/null", *small()), "does not exist|is not a file|must be an object"),
    ],
)
async def test_what_cannot_be_verified_exits_with_2(arguments: tuple[str, ...], reason: str) -> None:
    done = await verify(*arguments)
    assert done.code == 2
    assert re.search(reason, done.err)


async def test_rules_are_listed_and_explained() -> None:
    listed = await verify("--list")
    assert (listed.code, "LST-03  MUST" in listed.out) == (0, True)
    explained = await verify("--explain", "alo-03")
    assert explained.code == 0
    assert "3.41, 8.11 (docs/kubelet-behaviour.md in plugwright's source)" in explained.out


async def test_a_program_that_runs_already_is_attached_to(root: Path) -> None:
    from tests.cli.processes import running

    async with running(python(PLUGIN, "--root", str(root)), {}):
        done = await verify("--attach", str(root), "--rules", "LST", "--rules", "END")
    assert done.code == 0
    assert "an attached program is started and ended by its owner" in done.out


async def test_a_driver_that_is_started_by_others_is_waited_for(root: Path) -> None:
    command = python(
        "-m", "plugwright", "verify", "--dra", "--attach", str(root), "--rules", "PRP-0*", "--rules", "DRE"
    )
    variables = {"KUBECONFIG": str(root / "kubeconfig"), "NODE_NAME": "verified-node", "CDI_ROOT": str(root / "cdi")}
    async with running(command) as verifying:
        async with asyncio.timeout(60):
            while not (root / "kubeconfig").exists():
                await asyncio.sleep(0.02)
        async with running(python(DRIVER, "--root", str(root)), variables):
            assert await verifying.ends() == 0
    assert not (root / "kubeconfig").exists()


async def test_documents_and_a_baseline_are_for_drivers_too(tmp_path: Path) -> None:
    known = str(tmp_path / "known.txt")
    command = ("--dra", "--rules", "PRP-05", "--", sys.executable, DRIVER, "--root", "{root}", "--mutant")
    first = await verify("--output", "sarif", "--write-baseline", known, *command, "names-subrequest")
    assert (first.code, json.loads(first.out)["runs"][0]["results"][0]["ruleId"]) == (1, "PRP-05")
    second = await verify("--output", "junit", "--baseline", known, *command, "names-subrequest")
    assert (second.code, "PRP-05" in second.out) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_ends_the_program_under_test_too(number: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; trap '' TERM INT; while :; do sleep 1; done # {{dir}}"
    )
    async with running(python("-m", "plugwright", "verify", "--", "sh", "-c", script)) as verifying:
        async with asyncio.timeout(60):
            while not pid_file.exists():
                await asyncio.sleep(0.02)
        verifying.signal(number)
        assert await verifying.ends() == 130
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
