"""Clients that are not ours, with the embedded cluster: a program on client-go as it comes, and helm.

Those in Python and kubectl of several versions have files of their own.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cluster.embedding import embedded, served
from tests.kubernetes import building
from tests.kubernetes.building import Recipe
from tests.kubernetes.client_programs import ANOTHER_VERSION, Client
from tests.requirements import go_program

SOURCE = Path(__file__).parent / "go_client"
CHART = {
    "Chart.yaml": "{apiVersion: v2, name: tried, version: 0.1.0}",
    "templates/all.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {a: {{ .Values.a | default "1" | quote }}}
---
apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}}
stringData: {key: value}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Release.Name }}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: {{ .Release.Name }}}
value: 7
---
apiVersion: v1
kind: Pod
metadata: {name: {{ .Release.Name }}, labels: {a: {{ .Values.a | default "1" | quote }}}}
spec:
  serviceAccountName: {{ .Release.Name }}
  priorityClassName: {{ .Release.Name }}
  containers: [{name: main, image: demo, command: [sleep, "600"], resources: {limits: {mock/gpu: 1}}}]
  terminationGracePeriodSeconds: 1
---
apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-test
  annotations: {helm.sh/hook: test, helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}
spec:
  restartPolicy: Never
  containers: [{name: main, image: demo, command: [sh, -c, "true"]}]
""",
}
OF_THE_CHART = ("configmaps", "secrets", "pods", "priorityclasses.scheduling.k8s.io")
SAID = """typed stored v and a node with 3
applied map[b:3]
dynamic map[a:b c:d] and 2 of metadata
leading
event Tried
recorded Newer
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


async def test_client_go_as_it_comes_reads_writes_applies_leads_and_records_events(
    program: Path, tmp_path: Path
) -> None:
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        said = await Client(program, kubeconfig)(kubeconfig)
    assert said == f"informer saw informed\n{SAID}"


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(building.HELM, id="helm-3"), pytest.param(building.HELM_4, id="helm-4", marks=ANOTHER_VERSION)],
)
async def test_helm_installs_tests_upgrades_rolls_back_and_uninstalls(recipe: Recipe, tmp_path: Path) -> None:
    program, chart = building.build(recipe) / "helm", tmp_path / "chart"
    for name, text in CHART.items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(text)
    async with embedded(limit=240, processes=True) as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        before = {kind: _names(lab.store.objects(kind)) for kind in OF_THE_CHART}
        helm = Client(program, kubeconfig)
        await helm("install", "tried", chart, "--wait", "--timeout=60s")
        assert (lab.pod("tried") or {})["spec"]["priority"] == 7
        assert "Succeeded" in await helm("test", "tried", "--timeout=60s")
        await helm("upgrade", "tried", chart, "--set=a=2")
        releases = [name for name in _names(lab.store.objects("secrets")) if "release" in name]
        assert releases == ["sh.helm.release.v1.tried.v1", "sh.helm.release.v1.tried.v2"]
        assert _data(lab.store.objects("configmaps")) == {"a": "2"}
        await helm("rollback", "tried", "1")
        assert _data(lab.store.objects("configmaps")) == {"a": "1"}
        assert (lab.pod("tried") or {})["metadata"]["labels"]["a"] == "1"
        await helm("uninstall", "tried", "--wait", "--timeout=60s")
        assert {kind: _names(lab.store.objects(kind)) for kind in OF_THE_CHART} == before


def _names(objects: Sequence[dict[str, object]]) -> list[str]:
    return [content["metadata"]["name"] for content in objects]  # type: ignore[index]


def _data(config_maps: Sequence[dict[str, object]]) -> object:
    return next(one["data"] for one in config_maps if one["metadata"]["name"] == "tried")  # type: ignore[index]
