"""kubectl of three versions with the embedded cluster: the commands that people give, and what they are told.

The session of docs/cluster.md is `test_transcript`'s, the comparison with a real cluster `test_kubectl`'s.
"""

import json
import re
from pathlib import Path

import pytest
from tests.cluster.embedding import embedded, served
from tests.kubernetes import building
from tests.kubernetes.building import Recipe
from tests.kubernetes.client_programs import ANOTHER_VERSION, Client

VERSIONS = [
    pytest.param(building.kubernetes(building.DEFAULT_VERSION), id=building.DEFAULT_VERSION),
    pytest.param(building.kubernetes("1.37.0"), id="1.37.0", marks=ANOTHER_VERSION),
    pytest.param(building.kubectl(building.OLDER_KUBECTL), id=building.OLDER_KUBECTL, marks=ANOTHER_VERSION),
]
# Of the pod: it speaks, waits until it is told to end, and speaks again.
COMMAND = ["sh", "-c", "echo one; until test -e $STOP; do sleep 0.1; done; echo two"]


def pod(stop: Path, **labels: str) -> str:
    container = {
        "name": "main",
        "image": "demo",
        "command": COMMAND,
        "env": [{"name": "STOP", "value": str(stop)}],
        "resources": {"limits": {"mock/gpu": "1"}},
    }
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    metadata = {"name": "talks", "labels": {"app": "talks", **labels}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.parametrize("recipe", VERSIONS)
async def test_kubectl_does_what_it_does_on_a_cluster(recipe: Recipe, tmp_path: Path) -> None:
    program = building.build(recipe) / "kubectl"
    async with embedded(limit=400, processes=True, nodes=2) as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        await lab.offered(node="node-2")
        kubectl = Client(program, kubeconfig)
        assert f"v{recipe.version}" in await kubectl("version", "--client")
        await _runs_a_pod(kubectl, tmp_path / "stop")
        await _applies(kubectl, tmp_path / "stop")
        await _shows(kubectl)
        await _works_on_nodes(kubectl)
        await _deletes(kubectl)


async def _runs_a_pod(kubectl: Client, stop: Path) -> None:
    assert await kubectl("apply", "-f", "-", given=pod(stop)) == "pod/talks created\n"
    await kubectl("wait", "--for=condition=Ready", "pod/talks", "--timeout=60s")
    assert await kubectl("logs", "talks") == "one\n"
    stop.touch()
    assert await kubectl("logs", "--follow", "talks") == "one\ntwo\n"
    await kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/talks", "--timeout=60s")


async def _applies(kubectl: Client, stop: Path) -> None:
    differs = await kubectl.ended("diff", "-f", "-", given=pod(stop, more="x"))
    assert differs.code == 1
    assert re.findall(r"^\+ .*", differs.out, re.MULTILINE) == ["+    more: x"]
    assert await kubectl("apply", "-f", "-", given=pod(stop, more="x")) == "pod/talks configured\n"
    assert await kubectl("apply", "-f", "-", given=pod(stop, more="x")) == "pod/talks unchanged\n"
    assert await kubectl("diff", "-f", "-", given=pod(stop, more="x")) == ""
    conflict = await kubectl.ended(
        "apply", "--server-side", "--field-manager=other", "-f", "-", given=pod(stop, more="y")
    )
    assert conflict.code == 1
    assert 'conflict with "kubectl-client-side-apply"' in conflict.error
    forced = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    assert await kubectl(*forced, given=pod(stop, more="y")) == "pod/talks serverside-applied\n"
    assert await kubectl("label", "pod", "talks", "more=z", "--overwrite") == "pod/talks labeled\n"
    assert (await kubectl.ended("label", "pod", "talks", "more=w")).code == 1
    assert await kubectl("annotate", "pod", "talks", "note=hello") == "pod/talks annotated\n"
    await kubectl("create", "configmap", "settings", "--from-literal=a=b")
    await kubectl("patch", "configmap", "settings", "--patch", '{"data": {"c": "d"}}')
    document = await kubectl("get", "configmap", "settings", "-o", "json")
    assert json.loads(document)["data"] == {"a": "b", "c": "d"}
    assert await kubectl("replace", "-f", "-", given=document.replace('"d"', '"e"')) == "configmap/settings replaced\n"


async def _shows(kubectl: Client) -> None:
    wide = (await kubectl("get", "pods", "-o", "wide")).splitlines()
    assert wide[0].split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert wide[1].split()[:3] == ["talks", "0/1", "Completed"]
    told = await kubectl("events", "--for", "pod/talks")
    reasons = sorted(line.split()[2] for line in told.splitlines()[1:])
    assert reasons == ["Created", "Pulled", "Scheduled", "Started"]
    newer = await kubectl("get", "events.events.k8s.io", "--field-selector=regarding.name=talks", "-o", "name")
    assert newer.count("event.events.k8s.io/talks.") == 4
    described = await kubectl("describe", "pod", "talks")
    assert "more=z" in described
    assert "mock/gpu:  1" in described
    assert "Reason:       Completed" in described
    assert re.search(r"mock/gpu +0 +0$", await kubectl("describe", "node", "node-1"), re.MULTILINE)
    assert "nodeName\t<string>" in await kubectl("explain", "pod.spec")
    assert "preemptionPolicy\t<string>" in await kubectl("explain", "priorityclass")
    classes = await kubectl("get", "priorityclasses", "-o", "name")
    assert classes.split()[0] == "priorityclass.scheduling.k8s.io/system-cluster-critical"
    for kind in ("nodes", "pods"):
        refused = await kubectl.ended("top", kind)
        assert (refused.code, refused.error) == (1, "error: Metrics API not available\n")
    for words, what in (
        (("create", "token", "default"), "tokens of service accounts"),
        (("get", "statefulsets"), "StatefulSet objects"),
    ):
        refused = await kubectl.ended(*words)
        assert refused.code == 1
        assert f"plugwright does not emulate {what}; use `plugwright join`" in refused.error


async def _works_on_nodes(kubectl: Client) -> None:
    assert await kubectl("taint", "node", "node-1", "a=b:NoSchedule") == "node/node-1 tainted\n"
    assert await kubectl("cordon", "node-2") == "node/node-2 cordoned\n"
    await kubectl("run", "stays", "--image=demo", "--command", "--", "sleep", "600")
    await kubectl("wait", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "pod/stays", "--timeout=60s")
    assert await kubectl("taint", "node", "node-1", "a-") == "node/node-1 untainted\n"
    await kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    drained = await kubectl("drain", "node-1", "--force", "--grace-period=1", "--timeout=60s")
    assert "pod/stays evicted" in drained
    assert drained.endswith("node/node-1 drained\n")
    assert await kubectl("uncordon", "node-1", "node-2") == "node/node-1 uncordoned\nnode/node-2 uncordoned\n"


async def _deletes(kubectl: Client) -> None:
    await kubectl("run", "goes", "--image=demo", "--command", "--", "sleep", "600")
    await kubectl("wait", "--for=condition=Ready", "pod/goes", "--timeout=60s")
    await kubectl("delete", "pod", "goes", "--grace-period=1")
    await kubectl("wait", "--for=delete", "pod/goes", "--timeout=60s")
    await kubectl("delete", "configmap", "settings")
    await kubectl("delete", "pods", "--all", "--now")
    assert await kubectl("get", "pods,configmaps", "-o", "name") == ""
