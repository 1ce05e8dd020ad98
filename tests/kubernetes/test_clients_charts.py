"""Charts on emulated nodes of the real control plane, by helm 3 and helm 4: our own, and one by server-side apply.

Both are installed, upgraded and uninstalled, and leave no object behind. helm 4 applies on the server by default. The
clean-up of our own chart waits minutes for real kubelets, and is played with them (`test_chart`).
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import building
from tests.kubernetes.building import Recipe
from tests.kubernetes.control_plane import ControlPlane, control_plane
from tests.kubernetes.joining import joined, nodes_file
from tests.kubernetes.test_join import CHART

NODES = "nodes:\n- name: bare\n  count: 2\n"
TOLERATION = "tolerations[0].key=plugwright.dev/emulated,tolerations[0].operator=Exists"
KINDS = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,resourcequotas"
GLOBAL_KINDS = "clusterroles,clusterrolebindings,namespaces,priorityclasses,deviceclasses,crd"
# A list with two owners, which only server-side apply merges: the release owns one entry, somebody else the other.
MERGED = {
    "Chart.yaml": "{apiVersion: v2, name: merged, version: 0.1.0}",
    "templates/all.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: merged}
spec:
  replicas: 1
  selector: {matchLabels: {app: merged}}
  template:
    metadata: {labels: {app: merged}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{key: plugwright.dev/emulated, operator: Exists}]
      containers:
      - {name: main, image: demo, command: [sleep, "600"], env: [{name: WORD, value: {{ .Values.word | quote }}}]}
---
apiVersion: v1
kind: Service
metadata: {name: merged}
spec: {selector: {app: merged}, ports: [{name: tcp, port: 53, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]}
""",
    "values.yaml": "word: one\n",
}
SIDECAR = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "merged"},
    "spec": {
        "template": {
            "spec": {"containers": [{"name": "sidecar", "image": "demo", "command": ["sleep", "600"]}]},
        }
    },
}
HELMS = [pytest.param(building.HELM, id="helm-3"), pytest.param(building.HELM_4, id="helm-4")]


class Helm:
    def __init__(self, recipe: Recipe, plane: ControlPlane, home: Path) -> None:
        self._program = building.build(recipe) / "helm"
        self._environment = {"KUBECONFIG": str(plane.kubeconfig), "HOME": str(home), "PATH": "/usr/bin:/bin"}
        self.is_on_server = recipe is building.HELM_4

    def __call__(self, *words: object) -> str:
        command = [str(self._program), *map(str, words)]
        done = subprocess.run(command, env=self._environment, check=False, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


def objects(plane: ControlPlane) -> set[str]:
    """The names of all that a chart may make."""
    found = plane.kubectl("get", KINDS, "-o", "name").split() + plane.kubectl("get", GLOBAL_KINDS, "-o", "name").split()
    return {*found}


def offered(plane: ControlPlane, count: str) -> None:
    """Waits until every node has that many devices to give."""

    def counts() -> set[object]:
        return {node["status"]["allocatable"].get("mock/gpu") for node in plane.items("nodes")}

    plane.until(lambda: counts() == {count}, f"every node offers {count}")


def restart_daemons(plane: ControlPlane) -> None:
    """An emulated node writes a pod's volumes when the pod starts, and not again."""
    [daemon_set] = plane.items("daemonsets")
    plane.kubectl("rollout", "restart", f"daemonset/{daemon_set['metadata']['name']}")


@pytest.mark.full("charts of other projects, by two versions of helm")
@pytest.mark.parametrize("recipe", HELMS)
def test_our_own_chart_comes_changes_and_goes_without_a_trace(
    plane: ControlPlane, tmp_path: Path, recipe: Recipe
) -> None:
    helm = Helm(recipe, plane, tmp_path)
    with joined(plane, tmp_path, "-f", nodes_file(tmp_path, NODES), "--run"):
        before = objects(plane)
        values = f"mock.enabled=true,mock.count=6,cleanup.enabled=false,{TOLERATION}"
        helm("install", "devices", CHART, "--set", values, "--wait", "--timeout=120s")
        offered(plane, "6")
        helm("upgrade", "devices", CHART, "--set", values.replace("count=6", "count=4"), "--wait", "--timeout=120s")
        restart_daemons(plane)
        offered(plane, "4")
        helm("rollback", "devices", "1", "--wait", "--timeout=120s")
        restart_daemons(plane)
        offered(plane, "6")
        helm("uninstall", "devices", "--wait", "--timeout=120s")
        plane.until(lambda: objects(plane) == before, "nothing of the chart is left")
        offered(plane, "0")
    assert plane.items("nodes") == []


@pytest.mark.full("charts of other projects, by two versions of helm")
@pytest.mark.parametrize("recipe", HELMS)
def test_a_chart_by_server_side_apply_leaves_what_others_own(
    plane: ControlPlane, tmp_path: Path, recipe: Recipe
) -> None:
    helm, chart = Helm(recipe, plane, tmp_path), tmp_path / "chart"
    for name, text in MERGED.items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(text)
    with joined(plane, tmp_path, "-f", nodes_file(tmp_path, NODES), "--run"):
        before = objects(plane)
        helm("install", "merged", chart, "--wait", "--timeout=120s")
        sidecar = ("apply", "--server-side", "--field-manager=mesh", "-f", "-")
        plane.kubectl(*sidecar, stdin=json.dumps(SIDECAR))
        helm("upgrade", "merged", chart, "--set=word=two", "--wait", "--timeout=120s")
        deployment = plane.get("deployment", "merged", "--show-managed-fields")
        containers = deployment["spec"]["template"]["spec"]["containers"]
        assert {one["name"]: one.get("env", [{}])[0].get("value") for one in containers} == {
            "main": "two",
            "sidecar": None,
        }
        operations = {(one["manager"], one["operation"]) for one in deployment["metadata"]["managedFields"]}
        assert ("mesh", "Apply") in operations
        assert ("helm", "Apply" if helm.is_on_server else "Update") in operations
        assert len(plane.get("service", "merged")["spec"]["ports"]) == 2
        pods = plane.items("pods", "-l", "app=merged", "--field-selector=status.phase=Running")
        assert {one["spec"]["nodeName"].partition("-")[0] for one in pods} == {"bare"}
        helm("uninstall", "merged", "--wait", "--timeout=120s")
        plane.until(lambda: objects(plane) == before, "nothing of the chart is left")
