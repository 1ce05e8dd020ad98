"""A container's environment: values with references, fields of the pod, ConfigMaps, Secrets; and volumes of them."""

import base64
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes.container_env import PodFacts, container_environment, field_text, resource_text
from plugwright.cluster.nodes.pod_volumes import PodVolumes
from plugwright.errors import ContainerConfigError, VolumeNotMounted

SECRET = {"data": {"token": base64.b64encode(b"hush").decode(), "broken": "%"}}
METADATA = {
    "name": "p",
    "namespace": "lab",
    "uid": "u",
    "labels": {"app": "tape", "b/c": 'say "hi"'},
    "annotations": {"note": "two\nlines"},
}


@dataclass
class Config:
    config_maps: dict[str, Object] = field(default_factory=lambda: {"settings": {"data": {"a": "1", "b": "2"}}})
    secrets: dict[str, Object] = field(default_factory=lambda: {"keys": SECRET})

    async def config_map(self, namespace: str, name: str) -> Object | None:
        return self.config_maps.get(name) if namespace == "lab" else None

    async def secret(self, namespace: str, name: str) -> Object | None:
        return self.secrets.get(name) if namespace == "lab" else None


def facts(**spec: object) -> PodFacts:
    stored = {"metadata": METADATA, "spec": {"nodeName": "n", "containers": [], **spec}}
    return PodFacts(stored, "172.18.0.2", "10.244.0.2", {"cpu": "16", "memory": "64Gi"}, Config())


def mounting(*names: str) -> Object:
    return {"name": "main", "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names]}


def ref(kind: str, name: str, key: str, **more: object) -> Object:
    return {kind: {"name": name, "key": key, **more}}


async def test_variables_are_set_in_their_order() -> None:
    container = {
        "envFrom": [
            {"configMapRef": {"name": "settings"}},
            {"prefix": "S_", "secretRef": {"name": "keys"}},
            {"secretRef": {"name": "none", "optional": True}},
        ],
        "env": [
            {"name": "b", "value": "$(a)$(S_token)"},
            {"name": "c", "valueFrom": ref("secretKeyRef", "keys", "token")},
            {"name": "d", "value": "$(c) $(e) $$(c)"},
            {"name": "e", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "f", "valueFrom": ref("configMapKeyRef", "settings", "none", optional=True)},
            {"name": "g"},
        ],
    }
    environment = await container_environment(facts(), container)
    expected = {"a": "1", "b": "1hush", "S_broken": "", "S_token": "hush", "c": "hush", "d": "hush $(e) $(c)"}
    assert environment == {**expected, "e": "tape", "g": ""}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, 'configmap "none" not found'),
        ({"envFrom": [{"secretRef": {"name": "none"}}]}, 'secret "none" not found'),
        ({"env": [{"name": "x", "valueFrom": ref("configMapKeyRef", "none", "a")}]}, 'configmap "none" not found'),
        (
            {"env": [{"name": "x", "valueFrom": ref("configMapKeyRef", "settings", "z")}]},
            "couldn't find key z in ConfigMap lab/settings",
        ),
        (
            {"env": [{"name": "x", "valueFrom": ref("secretKeyRef", "keys", "z")}]},
            "couldn't find key z in Secret lab/keys",
        ),
        ({"env": [{"name": "x", "valueFrom": {"fileKeyRef": {"key": "a"}}}]}, "does not emulate env from fileKeyRef"),
    ],
)
async def test_a_reference_to_nothing_is_told_in_the_kubelets_words(container: Object, message: str) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        await container_environment(facts(), container)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "lab"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "tape"),
        ("metadata.labels['none']", ""),
        ("metadata.labels", 'app="tape"\nb/c="say \\"hi\\""'),
        ("metadata.annotations", 'note="two\\nlines"'),
        ("spec.nodeName", "n"),
        ("spec.serviceAccountName", ""),
        ("status.hostIP", "172.18.0.2"),
        ("status.podIP", "10.244.0.2"),
        ("status.podIPs", "10.244.0.2"),
    ],
)
def test_fields_of_the_pod(path: str, text: str) -> None:
    assert field_text(facts(), path) == text


@pytest.mark.parametrize(
    ("resource", "divisor", "text"),
    [
        ("limits.cpu", "", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1Mi", "100"),
        ("limits.memory", "1Gi", "64"),
        ("requests.cpu", "", "0"),
    ],
)
def test_resources_are_in_units_of_the_divisor(resource: str, divisor: str, text: str) -> None:
    container = {"name": "main", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi"}}}
    assert resource_text(facts(), container, {"resource": resource, "divisor": divisor}) == text


async def test_volumes_are_files_of_the_pod(tmp_path: Path) -> None:
    items = [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "settings", "items": [{"key": "a", "path": "x/a"}]}},
        {"secret": {"name": "keys", "items": [{"key": "token", "path": "t"}]}},
        {"downwardAPI": {"items": items}},
    ]
    pod = facts(
        volumes=[
            {"name": "all", "projected": {"sources": sources}},
            {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
            {"name": "none", "configMap": {"name": "none", "optional": True}},
            {"name": "unused", "nfs": {"server": "s", "path": "/"}},
        ],
        containers=[mounting("all", "keys", "none")],
    )
    volumes = PodVolumes(tmp_path)
    await volumes.set_up(pod)
    root = tmp_path / "pods" / "u" / "volumes"
    found = {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}
    assert found == {"all/name": "p", "all/t": "hush", "all/x/a": "1", "keys/broken": "", "keys/token": "hush"}
    assert (root / "keys" / "token").stat().st_mode & 0o777 == 0o400
    assert (root / "none").is_dir()
    mounts = [{"name": "keys", "mountPath": "/keys"}]
    assert volumes.mounts(pod.stored, {"volumeMounts": mounts}) == [(str(root / "keys"), "/keys", True, "required")]
    volumes.remove("u")
    assert not root.exists()


def test_a_host_path_of_the_kubelet_is_in_the_nodes_directory(tmp_path: Path) -> None:
    paths = ("/var/lib/kubelet/device-plugins", "/var/run/cdi", "/var/lib/kubelets")
    pod = facts(volumes=[{"name": f"v{n}", "hostPath": {"path": path}} for n, path in enumerate(paths)])
    container = {"volumeMounts": [{"name": f"v{n}", "mountPath": "/x"} for n in range(3)]}
    mounted = [mount[0] for mount in PodVolumes(tmp_path).mounts(pod.stored, container)]
    assert mounted == [str(tmp_path / "device-plugins"), str(tmp_path / "cdi"), "/var/lib/kubelets"]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        (
            {"configMap": {"name": "settings", "items": [{"key": "z", "path": "z"}]}},
            "references non-existent config key: z",
        ),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "does not emulate volumes of the type persistentVolumeClaim"),
        ({"hostPath": {"path": "/dev/null", "type": "Directory"}}, "type check failed: /dev/null is not a directory"),
        ({"hostPath": {"path": "/no/such", "type": "File"}}, "type check failed: /no/such is not a file"),
    ],
)
async def test_a_volume_that_cannot_be_set_up_is_told_in_the_kubelets_words(
    tmp_path: Path, volume: Object, message: str
) -> None:
    with pytest.raises(VolumeNotMounted) as refused:
        await PodVolumes(tmp_path).set_up(facts(volumes=[{"name": "v", **volume}], containers=[mounting("v")]))
    assert message in str(refused.value)
    assert str(refused.value).startswith('MountVolume.SetUp failed for volume "v" : ')
