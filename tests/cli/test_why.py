"""`plugwright why`, `fit` and `lint` as programs, on an embedded cluster over HTTPS."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.processes import Ended, ended
from tests.cluster.embedding import embedded, served
from tests.cluster.up.clusters import RuntimeDirectory, pod
from tests.kube.exec_server import daemon_pod, exec_server

from plugwright.cli.why import explanation_lines, waiting_lines
from plugwright.explain.explanation import Explanation, NodeEvidence
from plugwright.explain.waiting import WaitingList

POD = "\n".join(
    (
        "apiVersion: v1",
        "kind: Pod",
        "metadata: {name: train}",
        "spec: {containers: [{name: main, image: demo, resources: {limits: {mock/gpu: 6}}}]}",
    )
)
CLAIM = "\n".join(
    (
        "apiVersion: resource.k8s.io/v1",
        "kind: ResourceClaim",
        "metadata: {name: c}",
        "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: missing}}]}}",
    )
)


async def asked(kubeconfig: Path, *arguments: str) -> Ended:
    return await ended([sys.executable, "-m", "plugwright", *arguments, "--kubeconfig", str(kubeconfig)])


async def test_why_and_fit_answer_about_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(POD)
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        lab.create("holder", {"mock/gpu": "5"})
        await lab.phase("holder")
        lab.create("train", {"mock/gpu": "6"})
        why, document, fit, missing = await asyncio.gather(
            asked(kubeconfig, "why", "train"),
            asked(kubeconfig, "why", "train", "-o", "json"),
            asked(kubeconfig, "fit", "-f", str(tmp_path / "train.yaml"), "--replicas", "2"),
            asked(kubeconfig, "why", "pod/other"),
        )
    first = "train waits: no node has 6 free mock/gpu (node-1 has 5 of 10 mock/gpu free: 5 in use)"
    assert why.out.splitlines()[0] == first, why
    assert "  runs on node-1 if holder (default) ends" in why.out.splitlines()
    assert json.loads(document.out)["kind"] == "Explanation"
    assert (fit.code, fit.out.splitlines()[0]) == (1, "train fits 0 of 2 times")
    assert "namespace default has no pod other" in missing.out + missing.err


async def test_lint_of_a_claim_with_a_missing_class_fails(tmp_path: Path) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        lint, document = await asyncio.gather(
            asked(kubeconfig, "lint", "-f", str(tmp_path / "claim.yaml")),
            asked(kubeconfig, "lint", "-f", str(tmp_path / "claim.yaml"), "-o", "json"),
        )
    assert lint.code == 1
    assert lint.out.startswith("ResourceClaim c: error: DeviceClass missing does not exist")
    assert [found["code"] for found in json.loads(document.out)["findings"]] == ["class-missing"]


async def test_without_a_name_every_waiting_pod_is_listed(tmp_path: Path) -> None:
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        for name in ("large", "largest"):
            lab.create(name, {"mock/gpu": "12" if name == "large" else "14"})
        text, document, elsewhere = await asyncio.gather(
            asked(kubeconfig, "why", "-A", "-o", "wide"),
            asked(kubeconfig, "why", "-A", "-o", "json"),
            asked(kubeconfig, "why", "-n", "kube-system"),
        )
    head, large, largest, *_ = text.out.splitlines()
    assert head.split() == ["NAMESPACE", "POD", "REASON", "WHY"]
    assert large.split()[:3] == ["default", "large", "count"]
    assert "no node has 14 free mock/gpu" in largest
    found = json.loads(document.out)
    assert (found["kind"], [entry["pod"] for entry in found["pods"]]) == ("WaitingList", ["large", "largest"])
    assert elsewhere.out.splitlines()[0] == "no pod waits"


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    return runtime


async def test_the_reports_of_daemons_tell_cordons_from_failures(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 4}}]")
    async with runtime.up("-c", config, "--kubeconfig", tmp_path / "kubeconfig") as up:
        assert (await runtime.ask("mock", "fail", "mock-0", "--reason", "Xid 79")).code == 0
        assert (await runtime.ask("cordon", "mock/gpu", "mock-1", "--reason", "new fan")).code == 0
        with up.client as api:
            api.create(pod("train", gpu="4"))
        why, document, plain = await asyncio.gather(
            runtime.ask("why", "train"),
            runtime.ask("why", "train", "-o", "json"),
            runtime.ask("why", "train", "--no-daemons"),
        )
        # The same daemon behind the exec of another API server, which lists neither its pod nor others to this account.
        with exec_server([daemon_pod("p")], {"p": Path(up.socket())}) as server:
            server.lists["/api/v1/nodes"] = [{"metadata": {"name": "worker-1"}, "status": _status()}]
            server.lists["/api/v1/pods"] = [daemon_pod("p")]
            kubeconfig = str(server.kubeconfig(tmp_path / "other"))
            (tmp_path / "train.yaml").write_text(POD)
            fit = await runtime.ask("fit", "-f", str(tmp_path / "train.yaml"), "--kubeconfig", kubeconfig)
    wanted = "2 of 4 mock/gpu free: 1 cordoned (new fan), 1 unhealthy (Xid 79)"
    assert wanted in why.out.splitlines()[0], why
    assert "read: NodeReports of node-1" in why.out.splitlines()
    found = json.loads(document.out)
    assert found["sources"]["node-1"].startswith("control socket ")
    assert found["cures"][0]["kinds"] == ["recovery"], found
    assert any(line.startswith("    plugwright uncordon mock/gpu mock-1-") for line in why.out.splitlines()), why
    assert "2 unhealthy or cordoned" in plain.out.splitlines()[0], plain
    assert "read:" not in plain.out
    assert "1 cordoned (new fan), 1 unhealthy (Xid 79)" in fit.out, fit


def _status() -> dict[str, object]:
    ready = [{"type": "Ready", "status": "True"}]
    counts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    return {"capacity": counts | {"mock/gpu": "4"}, "allocatable": counts | {"mock/gpu": "2"}, "conditions": ready}


def test_pods_that_may_not_be_read_are_not_called_running() -> None:
    none = WaitingList(unseen=("pods of namespace default cannot be read",))
    lines = waiting_lines(none, {"pods", "own pods"}, has_namespace=False, is_wide=False)
    assert lines == [
        "unknown which pods wait: they cannot be read",
        "not seen: pods of namespace default cannot be read",
    ]
    assert waiting_lines(WaitingList(), {"pods"}, has_namespace=False, is_wide=False) == ["no pod waits"]
    assert waiting_lines(WaitingList(), {"pods"}, has_namespace=True, is_wide=False)[0].startswith("unknown")


def test_an_answer_that_cannot_be_given_does_not_deny_changes() -> None:
    group = NodeEvidence("error", "x", 1, ("n1",))
    known = Explanation(namespace="a", pod="b", state="waits", answer="waits: no node", evidence=(group,))
    unknown = replace(known, answer="waits: cannot be judged: DeviceClasses cannot be read")
    assert any("no change" in line for line in explanation_lines(known))
    assert not any("no change" in line for line in explanation_lines(unknown))
