"""`plugwright manifest`: plain manifests, for clusters without Helm.

They equal the chart in deploy/helm with its default values, which a test checks; its values.yaml has the reasons.
"""

from pathlib import Path
from typing import Any

import click
import yaml

from plugwright.cli.output import Dumper
from plugwright.config import schema
from plugwright.model import DNS_LABEL
from plugwright.version import __version__

__all__ = ["manifest", "objects"]

Manifest = dict[str, Any]

_NAME = "plugwright"
_SELECTOR = {
    "app.kubernetes.io/name": _NAME,
    "app.kubernetes.io/instance": _NAME,
    "app.kubernetes.io/component": "daemon",
}
_LABELS = {**_SELECTOR, "app.kubernetes.io/version": __version__}
_KUBELET = "/var/lib/kubelet"
_PORT = 9400
_MOCK = """\
resources:
- mock:
    count: 10
    memory: 40Gi
    model: Mock-A100
    numa: 2
  name: mock/gpu
"""


def _namespace(_: click.Context, __: click.Parameter, value: str) -> str:
    if not DNS_LABEL.fullmatch(value):
        raise click.BadParameter(f"a namespace must have lower-case letters, digits and '-', got {value!r}")
    return value


@click.command(epilog="Example:  plugwright manifest -c plugwright.yaml --namespace devices | kubectl apply -f -")
@click.option("-c", "--config", "path", type=click.Path(path_type=Path),
              help="Configuration to deploy.  [default: ten mock GPUs, as mock/gpu]")  # fmt: skip
@click.option("--namespace", default=_NAME, show_default=True, callback=_namespace)
@click.option("--image", default=f"{_NAME}:{__version__}", show_default=True)
def manifest(path: Path | None, namespace: str, image: str) -> None:
    """Print manifests that run plugwright on every node of a cluster, equal to the Helm chart with its default values.

    `kubectl delete` removes them again, and `plugwright node remove --stale --all-nodes --wait` what is left on the
    nodes.
    """
    if path is not None:
        schema.load(path)
    file = path.read_text(encoding="utf-8") if path else _MOCK
    printed = [
        yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=120) for manifest in objects(file, namespace, image)
    ]
    click.echo("---\n".join(printed), nl=False)


def objects(file: str, namespace: str, image: str) -> list[Manifest]:
    own = [] if _is_built_in(namespace) else [_namespace_object(namespace)]
    return [*own, _service_account(namespace), _config_map(namespace, file), _daemon_set(namespace, image)]


def _is_built_in(namespace: str) -> bool:
    """A namespace of Kubernetes itself exists already, and `kubectl delete -f` must not remove it."""
    return namespace == "default" or namespace.startswith("kube-")


def _namespace_object(namespace: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}  # for the hostPath volumes alone
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


def _metadata(namespace: str) -> Manifest:
    return {"name": _NAME, "namespace": namespace, "labels": _LABELS}


def _service_account(namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(namespace),
        "automountServiceAccountToken": False,
    }


def _config_map(namespace: str, file: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(namespace),
        "data": {"plugwright.yaml": file},
    }


def _daemon_set(namespace: str, image: str) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(namespace),
        "spec": {
            "selector": {"matchLabels": _SELECTOR},
            # Never two on one node: up to Kubernetes 1.36 the end of the old one would cut off the new one.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": _SELECTOR}, "spec": _pod(image)},
        },
    }


def _pod(image: str) -> Manifest:
    return {
        "serviceAccountName": _NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "containers": [_container(image)],
        "volumes": _volumes(),
    }


def _container(image: str) -> Manifest:
    return {
        "name": _NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": _arguments(),
        "env": [_field("POD_IP", "status.podIP"), _field("HOST_IP", "status.hostIP")],
        "ports": [{"name": "probes", "containerPort": _PORT}],
        "readinessProbe": _probe(
            "/readyz", initialDelaySeconds=1, periodSeconds=5, timeoutSeconds=2, failureThreshold=2
        ),
        "livenessProbe": _probe("/healthz", periodSeconds=20, timeoutSeconds=5, failureThreshold=3),
        "resources": {"limits": {"memory": "128Mi"}, "requests": {"cpu": "10m", "memory": "48Mi"}},
        "securityContext": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(),
    }


def _arguments() -> list[str]:
    return [
        "run",
        f"--kubelet-dir={_KUBELET}",
        f"--device-plugins-dir={_KUBELET}/device-plugins",
        "--registration=direct",
        "--log-format=json",
        "--log-level=info",
        f"--listen=$(POD_IP):{_PORT}",
        "--node-addresses=$(HOST_IP),gateway",
    ]


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, **times: int) -> Manifest:
    return {"httpGet": {"path": path, "port": "probes"}, **times}


def _mounts() -> list[Manifest]:
    return [
        {"name": "config", "mountPath": "/etc/plugwright", "readOnly": True},
        {"name": "device-plugins", "mountPath": f"{_KUBELET}/device-plugins"},
        {"name": "pod-resources", "mountPath": f"{_KUBELET}/pod-resources", "readOnly": True},
        {"name": "state", "mountPath": "/var/lib/plugwright"},
        {"name": "run", "mountPath": "/run/plugwright"},
    ]


def _volumes() -> list[Manifest]:
    return [
        {"name": "config", "configMap": {"name": _NAME}},
        _host_path("device-plugins", f"{_KUBELET}/device-plugins", "Directory"),
        _host_path("pod-resources", f"{_KUBELET}/pod-resources", "Directory"),
        _host_path("state", "/var/lib/plugwright", "DirectoryOrCreate"),
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]


def _host_path(name: str, path: str, kind: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
