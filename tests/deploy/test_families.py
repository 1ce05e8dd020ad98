"""The directories that each device family needs: the chart and `plugwright manifest` mount the same ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.rendered import Object, helm, host_mounts

from plugwright.config import families, manifests, schema

DEVICE_INFO = "/var/run/k8s.cni.cncf.io/devinfo/dp"
# A resource of each family, and what its pod must see of the node, in the order of mount paths.
RESOURCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "drm": ({"drm": {}}, ["/dev", "/sys"]),
    "fpga": ({"fpga": {}}, ["/dev", "/sys"]),
    "groups": ({"groups": [{"paths": ["/dev/a*", "/srv/keys/*/b"]}]}, ["/dev", "/srv/keys", "/sys"]),
    "mock": ({"mock": {"count": 1, "facts": "/run/facts/mock"}}, ["/run/facts/mock"]),
    "net": ({"net": {}}, ["/dev", "/sys"]),
    "nvidia": ({"nvidia": {}}, ["/dev"]),
    "nvme": ({"nvme": {}}, ["/dev", "/sys"]),
    "paths": ({"paths": ["/dev/fuse", "/sys/x", {"path": "/opt/license/*.key"}]}, ["/dev", "/opt/license", "/sys"]),
    "pci": ({"pci": {"vendor": "8086"}}, ["/dev", "/sys", DEVICE_INFO]),
    "rdma": ({"rdma": {}}, ["/dev", "/sys"]),
    "usb": ({"usb": {"vendor": "1a2b"}, "cdi": True}, ["/dev", "/sys", "/var/run/cdi"]),
}
MORE = [
    {"nvidia": {"simulate": "dgx-a100"}},
    {"nvidia": {"driver": {"root": "/host"}}},
    {"nvidia": {"driver": {"root": "/driver/", "host": "/run/nvidia/driver"}}},
    {"nvidia": {"driver": {"root": "/host", "host": "/"}}},
    {"nvidia": {"strategy": "cdi-cri"}},
    {"nvidia": {"strategy": ["device-nodes", "cdi-annotations"], "cdi": {"dir": "/etc/cdi", "programs": "/opt/bin"}}},
    {"nvidia": {"share": {"by": "vgpu", "replicas": 2}}},
    {"nvidia": {"share": {"by": "vgpu", "replicas": 2, "library": "hami", "vgpu": {"locks": "/run/locks"}}}},
    {"nvidia": {"labels": "/etc/kubernetes/node-feature-discovery/features.d"}},
    {"paths": ["/dev/a", "//srv//b/c"]},
    {"usb": [{"vendor": "1a2b"}, {"vendor": "3c4d"}]},
]


def by_manifest(config: dict[str, Any]) -> Object:
    file = schema.read("plugwright.yaml", json.dumps(config)).file
    *_, daemon_set = manifests.for_file("", file, manifests.DaemonTarget("plugwright"))
    pod: Object = daemon_set["spec"]["template"]["spec"]
    return pod


def by_chart(config: dict[str, Any], tmp_path: Path, *flags: str) -> Object:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({"config": config}))
    result = helm("template", "-f", path, *flags)
    assert result.returncode == 0, result.stderr
    pods = [
        each["spec"]["template"]["spec"] for each in yaml.safe_load_all(result.stdout) if each["kind"] == "DaemonSet"
    ]
    pod: Object = pods[0]
    return pod


@pytest.mark.parametrize("key", sorted(families.BUILT_IN))
def test_the_manifest_mounts_the_directories_of_a_family(key: str) -> None:
    resource, expected = RESOURCES[key]
    pod = by_manifest({"resources": [{"name": "example.com/device", **resource}]})
    assert [mount["mountPath"] for mount in host_mounts(pod)] == expected


@pytest.mark.parametrize("root", ["/", "/host"])
@pytest.mark.parametrize("resource", [*(RESOURCES[key][0] for key in sorted(RESOURCES)), *MORE], ids=json.dumps)
def test_the_chart_mounts_what_the_manifest_mounts(resource: dict[str, Any], root: str, tmp_path: Path) -> None:
    config = {"resources": [{"name": "example.com/device", **resource}], "host": {"root": root}}
    rendered, made = by_chart(config, tmp_path), by_manifest(config)
    assert host_mounts(rendered) == host_mounts(made)
    assert rendered["containers"][0]["image"] == made["containers"][0]["image"]


def test_a_runtime_class_provides_the_nodes_of_nvidia_gpus(tmp_path: Path) -> None:
    config = {"resources": [{"name": "nvidia.com/gpu", "nvidia": {}}]}
    assert host_mounts(by_chart(config, tmp_path, "--set", "runtimeClassName=nvidia")) == []
