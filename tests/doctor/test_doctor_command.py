"""`plugwright doctor`: what it prints, its exit codes, its document, and a node that the API server reaches."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.processes import Ended, ended
from tests.doctor.patient import Patient, patient
from tests.kube.exec_server import daemon_pod, exec_server

from plugwright.doctor.diagnosis import CHECKS
from plugwright.doctor.doctor_report import DoctorReport

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA, PAGE = DOCS / "doctor-report.schema.json", DOCS / "doctor.md"


async def doctor(node: Patient, *arguments: str, environment: dict[str, str] | None = None) -> Ended:
    command = [sys.executable, "-m", "plugwright", "doctor", *arguments]
    return await ended(command, {**os.environ, "NODE_NAME": "worker-1", **(environment or {})})


def at(node: Patient) -> tuple[str, ...]:
    return "--root", str(node.root), "--kubelet-dir", "/var/lib/kubelet"


async def test_a_healthy_node_ends_with_0_and_a_line_for_each_check(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        done = await doctor(node, *at(node))
    assert (done.code, done.err) == (0, "")
    *lines, empty, last = done.out.splitlines()
    assert (len(lines), empty) == (len(CHECKS), "")
    assert re.fullmatch(r"healthy: 0 findings, \d+ ok, \d+ not checked", last)


async def test_a_finding_ends_with_1_and_comes_first_with_its_fix(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        node.write("var/lib/kubelet/device-plugins/DEPRECATION", "")
        done = await doctor(node, *at(node))
    assert done.code == 1
    first = done.out.splitlines()[0]
    assert first.startswith("FAIL  deprecation-file")
    assert first.endswith("fix: rm /var/lib/kubelet/device-plugins/DEPRECATION, then restart the plugins")


async def test_the_document_is_that_of_the_schema(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        node.write("var/lib/kubelet/device-plugins/DEPRECATION", "")
        done = await doctor(node, *at(node), "-o", "json")
    document: dict[str, Any] = json.loads(done.out)
    assert (document["apiVersion"], document["kind"]) == ("plugwright.dev/v1alpha1", "DoctorReport")
    assert (document["metadata"]["nodeName"], document["metadata"]["inPod"]) == ("worker-1", False)
    assert document["result"] == "findings"
    assert {check["name"] for check in document["checks"] if check["state"] == "finding"} == {"deprecation-file"}
    assert json.loads(msgspec.json.encode(msgspec.convert(document, DoctorReport))) == document


async def test_a_root_that_is_no_directory_is_an_error(root: Path) -> None:
    done = await doctor(Patient(root), "--root", str(root / "none"))
    assert (done.code, "--root must be a directory" in done.err) == (1, True)


async def test_hostile_names_are_shown_as_escapes(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        node.write("run/cdi/\x1b[31mred.json", "{")
        done = await doctor(node, *at(node))
    assert done.code == 1
    assert "\x1b" not in done.out
    assert "\\x1b[31mred.json" in done.out


async def test_names_in_a_command_are_quoted_for_the_shell(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        node.write("run/cdi/a; reboot.json", "{")
        done = await doctor(node, *at(node))
    assert "or rm '/var/run/cdi/a; reboot.json'" in done.out


async def test_a_node_is_examined_in_its_daemons_pod(root: Path, tmp_path: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        places = {"PLUGWRIGHT_KUBELET_DIR": f"{root}/var/lib/kubelet", "PLUGWRIGHT_STATE_DIR": f"{root}/state"}
        with exec_server([daemon_pod("plugwright-x7")], {"plugwright-x7": node.control}) as server:
            server.environment = {**places, "NODE_NAME": "worker-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
            done = await doctor(node, "worker-1", "-o", "json", "--kubeconfig", str(server.kubeconfig(tmp_path / "c")))
    document = json.loads(done.out)
    assert document["metadata"]["inPod"]
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert (states["pod-resources"], states["kubelet-root"]) == ("ok", "unknown")


def test_the_schema_beside_the_page_is_the_documents_own() -> None:
    text = json.dumps(msgspec.json.schema(DoctorReport), indent=2, sort_keys=True) + "\n"
    if not SCHEMA.exists() or SCHEMA.read_text() != text:
        SCHEMA.write_text(text)
        pytest.fail(f"{SCHEMA.name} was not the schema of DoctorReport; it is written again, look at the difference")


def test_the_page_has_every_key_and_every_check() -> None:
    documented = set(re.findall(r"`([\w-]+)`", PAGE.read_text()))
    parts = msgspec.json.schema(DoctorReport)["$defs"].values()
    assert {key for part in parts for key in part["properties"]} - documented == set()
    assert CHECKS.keys() - documented == set()
