"""Fields of a pod that joined nodes do not emulate: which they are, and how it is said."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.embedding import embedded
from tests.cluster.joined.test_joined_nodes import joined

from plugwright.apiserver.kinds import EVENTS
from plugwright.cluster.joined.joined_nodes import NodePlan, RemoteClient
from plugwright.cluster.joined.pod_limits import PodLimits, not_emulated_here


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, []),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "b"}}]}, []),
        ({"volumes": [{"name": "a", "nfs": {"server": "a", "path": "/"}}]}, ["volumes.nfs"]),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}]}, ["volumes.persistentVolumeClaim"]),
        ({"runtimeClassName": "nvidia"}, ["runtimeClassName"]),
        ({"ephemeralContainers": [{"name": "debugger"}]}, ["ephemeralContainers"]),
        # of the cluster's own scheduler
        ({"schedulingGroup": {"podGroupName": "a"}}, []),
    ],
)
def test_what_the_kubelet_would_have_to_do_is_named(spec: dict[str, Any], fields: list[str]) -> None:
    assert not_emulated_here({"containers": [{"name": "main"}], **spec}) == fields


async def test_a_pod_says_once_what_its_node_does_not_emulate(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, joined(lab, tmp_path, NodePlan(name="gpu-1")) as nodes:
        limits = PodLimits(RemoteClient(nodes.mirror, nodes.outbox))
        pod: Any = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "disks", "namespace": "default", "uid": "1", "generation": 1},
            "spec": {"nodeName": "gpu-1", "containers": [], "volumes": [{"name": "a", "csi": {"driver": "d"}}]},
        }
        for generation, runtime in ((1, ""), (1, ""), (2, ""), (3, "nvidia"), (3, "nvidia")):
            pod = {**pod, "metadata": {**pod["metadata"], "generation": generation}}
            limits.examine({**pod, "spec": {**pod["spec"], "runtimeClassName": runtime}})
        await nodes.outbox.until_sent()
        events = [event for event in lab.store.objects(EVENTS.qualified) if event["reason"] == "NotEmulated"]
        assert [(event["type"], event["message"], event["count"]) for event in events] == [
            ("Warning", "plugwright does not emulate volumes.csi on this node", 1),
            ("Warning", "plugwright does not emulate runtimeClassName, volumes.csi on this node", 1),
        ]
