"""`plugwright manifest`: plain manifests, for clusters without Helm.

They equal the chart in deploy/helm with its default values, which a test checks; its values.yaml has the reasons. The
directories that the devices of a file need are mounted as the chart does it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from plugwright.cli import manifest_claims
from plugwright.cli.output import Dumper
from plugwright.config import schema
from plugwright.config.schema import ConfigFile
from plugwright.errors import ConfigError
from plugwright.grammars import DNS_LABEL
from plugwright.sdk.serve_settings import Api
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
_CDI = "/var/run/cdi"
_SYSTEM = ("/dev", "/proc", "/sys", "/usr")  # on every node
_TAKEN = ("/", "/etc", "/opt", "/proc", "/run", "/tmp", "/usr", "/var", "/var/lib", "/var/run")  # in the container
# Asks the daemon on its socket whether it serves, and waits for a yes there: by the least of Python that there is.
_READY = """\
import _socket, sys, time
end = time.monotonic() + 55
while True:
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.settimeout(58)
    try:
        asking.connect("/run/plugwright/control.sock")
        asking.sendall(b'{"do": "ready", "wait": %d}\\n' % max(1, end - time.monotonic()))
        answer = asking.recv(4096)
        break
    except OSError as error:
        answer = str(error).encode()
    if time.monotonic() > end:
        break
    time.sleep(0.1)
sys.stdout.write(answer.decode())
sys.exit(not answer.startswith(b'{"ok"'))
"""
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
@click.option("--image", show_default=f"{_NAME}:{__version__}, or {_NAME}-tools:{__version__} for NVIDIA GPUs",
              help="An image that the nodes can pull: there is none but the one that you build.")  # fmt: skip
@click.option(
    "--plugin", default="", metavar="MODULE:CLASS", help="A plugin of your own in the image, in place of a file."
)
@click.option("--name", default=_NAME, show_default=True, callback=_namespace, help="Name of the objects.")
@click.option("--host-path", "host_paths", multiple=True, metavar="DIR",
              help="A directory of the node that the plugin looks at, read-only; may be repeated.")  # fmt: skip
@click.option(
    "--serve", type=click.Choice([Api.DRA.value, Api.BOTH.value]), help="Serve the plugin by claims, or both ways."
)
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME", help="Of --serve: what it serves; may be repeated."
)
def manifest(path: Path | None, namespace: str, image: str | None, **plugin: Any) -> None:
    """Print manifests that run plugwright on every node of a cluster, equal to the Helm chart with its default values.

    `kubectl delete` removes them again, and `plugwright node remove --stale --all-nodes --wait` what is left on the
    nodes.
    """
    config = schema.load(path) if path is not None else schema.read("plugwright.yaml", _MOCK)
    made = objects(path.read_text(encoding="utf-8") if path else _MOCK, config.file, namespace, image)
    if plugin["plugin"]:
        if path is not None:
            raise click.UsageError("a plugin is served without a file: leave out --config")
        made = _with_plugin(made, namespace, **plugin)
    elif plugin["name"] != _NAME or plugin["host_paths"] or plugin["serve"] or plugin["resources"]:
        raise click.UsageError("--name, --host-path, --serve and --resource are for --plugin")
    printed = [yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=120) for manifest in made]
    click.echo("---\n".join(printed), nl=False)


def objects(text: str, file: ConfigFile, namespace: str, image: str | None) -> list[Manifest]:
    own = [] if _is_built_in(namespace) else [_namespace_object(namespace)]
    extras = any(entry.key == "nvidia" for entry in file.resources)
    daemon_set = _daemon_set(namespace, image or f"{_NAME}{'-tools' if extras else ''}:{__version__}")
    pod = daemon_set["spec"]["template"]["spec"]
    served = manifest_claims.served_by_claims(file)
    if served:
        manifest_claims.extend_pod(pod, _KUBELET)
    _mount(pod, _host_mounts(file))
    return [
        *own,
        _priority_class(namespace),
        _service_account(namespace),
        *manifest_claims.objects(served, namespace, _NAME, _LABELS),
        _config_map(namespace, text),
        daemon_set,
    ]


def _host_mounts(file: ConfigFile) -> list[Manifest]:
    """The directories of the node that its devices need, each once, as entries of the chart's `hostPaths`."""
    mounts: dict[str, Manifest] = {}
    for entry in file.resources:
        for needed in entry.family.host_directories(entry, file.host):
            at = needed.mount_path or needed.path
            if at in _TAKEN:
                raise ConfigError(
                    f"{entry.name}: {at} cannot be mounted at its own path in the daemon's pod: set host.root, for "
                    f"example to /host"
                )
            propagation = {"mountPropagation": "HostToContainer"} if needed.mounts else {}
            mounts[at] = {"path": needed.path, "mountPath": at, "readOnly": not needed.written, **propagation}
    if manifest_claims.served_by_claims(file):
        mounts[file.host.cdi] = {"path": file.host.cdi, "mountPath": file.host.cdi, "readOnly": False}
    return [mounts[at] for at in sorted(mounts)]


def _mount(pod: Manifest, mounts: Sequence[Manifest]) -> None:
    for number, mount in enumerate(mounts):
        path, name = mount["path"], f"host-{number}"
        container_mount = {key: value for key, value in mount.items() if key != "path"}
        pod["containers"][0]["volumeMounts"].append({"name": name, **container_mount})
        pod["volumes"].append(_host_path(name, path, "Directory" if path in _SYSTEM else "DirectoryOrCreate"))


def _with_plugin(
    made: list[Manifest],
    namespace: str,
    plugin: str,
    name: str,
    host_paths: Sequence[str],
    serve: str | None,
    resources: Sequence[str],
) -> list[Manifest]:
    """The same objects for a plugin in the image: no file, names of its own, and the directories that it looks at."""
    for path in host_paths:
        if not path.startswith("/"):
            raise click.UsageError(f"--host-path must be absolute, got {path!r}")
    if bool(serve) != bool(resources):
        raise click.UsageError("--serve needs --resource, and --resource needs --serve: drivers are named after them")
    kept = [_renamed(manifest, name) for manifest in made if manifest["kind"] != "ConfigMap"]
    pod = kept[-1]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["args"].insert(1, plugin)
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "config"]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "config"]
    directories = [{"path": path, "mountPath": path, "readOnly": True} for path in host_paths]
    if serve:
        served = [manifest_claims.Served.of(resource, Api(serve)) for resource in sorted(set(resources))]
        kept[-1:-1] = manifest_claims.objects(served, namespace, name, kept[-1]["metadata"]["labels"])
        manifest_claims.extend_pod(pod, _KUBELET)
        container["args"].insert(2, f"--serve={serve}")
        directories.append({"path": _CDI, "mountPath": _CDI, "readOnly": False})
    _mount(pod, directories)
    for volume in pod["volumes"]:
        if volume["name"] == "state":  # two daemons of one node keep their cordons apart
            volume["hostPath"]["path"] = f"/var/lib/plugwright-{name}" if name != _NAME else "/var/lib/plugwright"
    return kept


def _renamed(manifest: Manifest, name: str) -> Manifest:
    """Labels, selectors, the account's and the container's name too; the namespace has a flag of its own."""
    if manifest["kind"] == "Namespace":
        return manifest
    text = yaml.dump(manifest, Dumper=Dumper, sort_keys=False)
    for key in ("  name: ", "app.kubernetes.io/name: ", "app.kubernetes.io/instance: ", "serviceAccountName: "):
        text = re.sub(rf"{re.escape(key)}{_NAME}$", f"{key}{name}", text, flags=re.MULTILINE)
    for key in ("  name: ", "priorityClassName: "):  # that of the class has the namespace before it
        text = re.sub(rf"{re.escape(key)}(.*)-{_NAME}$", rf"{key}\1-{name}", text, flags=re.MULTILINE)
    renamed: Manifest = yaml.safe_load(text)
    return renamed


def _is_built_in(namespace: str) -> bool:
    """A namespace of Kubernetes itself exists already, and `kubectl delete -f` must not remove it."""
    return namespace == "default" or namespace.startswith("kube-")


def _namespace_object(namespace: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}  # for the hostPath volumes alone
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


def _priority_class(namespace: str) -> Manifest:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"{namespace}-{_NAME}", "labels": _LABELS},
        "value": 1_000_000_000,
        "description": "Daemons that offer devices to the pods of their node",
    }


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
            "template": {"metadata": {"labels": _SELECTOR}, "spec": _pod(namespace, image)},
        },
    }


def _pod(namespace: str, image: str) -> Manifest:
    return {
        "serviceAccountName": _NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": f"{namespace}-{_NAME}",
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
        "readinessProbe": {
            "exec": {"command": ["python", "-IS", "-c", _READY]},
            "periodSeconds": 60,
            "timeoutSeconds": 60,
            "failureThreshold": 1,
        },
        "terminationMessagePath": "/run/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
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
        "--watchdog=30",
    ]


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
