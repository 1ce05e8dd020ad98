"""Devices that a plugin answers by their CDI names: containerd gives them to the container."""

import json

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins


@pytest.mark.essential
@pytest.mark.smoke
def test_a_cdi_device_arrives_and_its_env_holds_against_the_pods_own(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    _write_specification(cluster)
    plugins.script("by_cdi_name", "example.com/tape")
    node.shows("example.com/tape", capacity=2, allocatable=2)

    own = {"BY_ENVS": "pod", "BY_CDI": "pod"}
    pod = pods.create("player", {"example.com/tape": 2}, env=own).runs()

    for device in ("st0", "st1"):
        assert pod.exec("stat", "-c", "%F %t:%T", f"/dev/tape-{device}").strip() == "character special file 1:5"
        assert pod.exec("cat", f"/etc/tape/{device}") == f"label of {device}\n"
    environment = pod.environment()
    assert {environment["TAPE_ST0"], environment["TAPE_ST1"]} == {"present"}
    assert environment["BY_CDI"] == "cdi", "what must hold against the tenant goes through CDI"
    assert environment["BY_ENVS"] == "pod", "a pod's own env wins over what the plugin answers as envs"


def _write_specification(cluster: Cluster) -> None:
    """Where containerd looks for it: /var/run/cdi on the node."""
    devices = [_device(cluster, name) for name in ("st0", "st1")]
    directory = cluster.state / "run" / "cdi"
    directory.mkdir(exist_ok=True)
    (directory / "tape.json").write_text(
        json.dumps({"cdiVersion": "0.6.0", "kind": "example.com/tape", "devices": devices})
    )


def _device(cluster: Cluster, name: str) -> dict[str, object]:
    label = cluster.state / f"label-of-{name}"
    label.write_text(f"label of {name}\n")
    edits = {
        "deviceNodes": [{"path": f"/dev/tape-{name}", "hostPath": "/dev/zero"}],
        "mounts": [{"hostPath": str(label), "containerPath": f"/etc/tape/{name}", "options": ["ro", "bind"]}],
        "env": [f"TAPE_{name.upper()}=present", "BY_CDI=cdi"],
    }
    return {"name": name, "containerEdits": edits}
