"""Clients that are not ours, with the embedded cluster: a program on client-go as it comes, and helm."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cluster.embedding import embedded, served
from tests.kubernetes import building

SOURCE = Path(__file__).parent / "go_client"
OFFLINE = {"CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
CHART = {
    "Chart.yaml": "{apiVersion: v2, name: tried, version: 0.1.0}",
    "templates/all.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {a: {{ .Values.a | default "1" | quote }}}
""",
}
SAID = """typed stored v and a node with 3
applied map[b:3]
dynamic map[a:b c:d] and 2 of metadata
leading
event Tried
"""


async def run(*command: object, kubeconfig: Path) -> str:
    """What a program prints that ends well."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}
    process = await asyncio.create_subprocess_exec(
        *map(str, command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, error.decode()
    return out.decode()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build a client that is not ours")
    built = tmp_path_factory.mktemp("go") / "client"
    environment = {**os.environ, **OFFLINE}
    command = ["go", "build", "-trimpath", "-o", str(built), "."]
    done = subprocess.run(
        command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        pytest.skip(f"needs the modules of k8s.io/client-go, downloaded before: {done.stderr.strip()[:200]}")
    return built


async def test_client_go_as_it_comes_reads_writes_applies_and_leads(program: Path, tmp_path: Path) -> None:
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        said = await run(program, kubeconfig, kubeconfig=kubeconfig)
    assert said == f"informer saw informed\n{SAID}"


async def test_helm_keeps_its_releases_in_secrets(tmp_path: Path) -> None:
    helm, chart = building.build(building.HELM) / "helm", tmp_path / "chart"
    for name, text in CHART.items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(text)
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        await run(helm, "install", "tried", chart, kubeconfig=kubeconfig)
        await run(helm, "upgrade", "tried", chart, "--set=a=2", kubeconfig=kubeconfig)
        names = [secret["metadata"]["name"] for secret in lab.store.objects("secrets")]
        assert names == ["sh.helm.release.v1.tried.v1", "sh.helm.release.v1.tried.v2"]
        await run(helm, "rollback", "tried", "1", kubeconfig=kubeconfig)
        assert [one["data"] for one in lab.store.objects("configmaps") if one["metadata"]["name"] == "tried"] == [
            {"a": "1"}
        ]
        await run(helm, "uninstall", "tried", kubeconfig=kubeconfig)
        assert not lab.store.objects("secrets")
