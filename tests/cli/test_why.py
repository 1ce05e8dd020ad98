"""`plugwright why`, `fit` and `lint` as programs, on an embedded cluster over HTTPS."""

import asyncio
import json
import sys
from pathlib import Path

from tests.cli.processes import Ended, ended
from tests.cluster.embedding import embedded, served

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
