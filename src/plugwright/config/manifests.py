"""The manifests that run the daemon on every node, for clusters without Helm.

They equal the chart in deploy/helm with its default values, which its values.yaml explains; a test compares the two.
"""

from collections.abc import Sequence

import msgspec

from plugwright.config import manifest_claims
from plugwright.config.manifest_claims import Manifest, Served
from plugwright.config.schema import ConfigFile
from plugwright.errors import ConfigError
from plugwright.sdk.host_mounts import HostDirectory
from plugwright.sdk.serve_settings import ServeMode
from plugwright.version import __version__

__all__ = ["SYSTEM", "TAKEN", "DaemonTarget", "Manifest", "PluginTarget", "for_file", "for_plugin"]


_NAME = "plugwright"
_KUBELET = "/var/lib/kubelet"
_CDI = "/var/run/cdi"
_STATE = "/var/lib/plugwright"
_NODE = "/var/lib/plugwright-node"  # in the container, where the state directory has the usual path
SYSTEM = ("/dev", "/proc", "/sys", "/usr")  # exist on every node
TAKEN = ("/", "/etc", "/opt", "/proc", "/run", "/tmp", "/usr", "/var", "/var/lib", "/var/run")  # in the container
# Asks the daemon over its socket whether it is ready, and waits for it; imports as little of Python as possible.
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
sys.exit({failed})
"""
# A daemon that has to wait must not be restarted: the startup probe succeeds in any case.
_PROBES = {
    "startupProbe": (_READY.replace("{failed}", "0"), {"periodSeconds": 1, "failureThreshold": 60}),
    "readinessProbe": (
        _READY.replace("{failed}", """not answer.startswith(b'{"ok"')"""),
        {"periodSeconds": 10, "failureThreshold": 1},
    ),
}


class DaemonTarget(msgspec.Struct, frozen=True):
    """Namespace, name and image of the daemon; an empty `image` is plugwright's own."""

    namespace: str
    name: str = _NAME
    image: str = ""

    @property
    def selector(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": self.name,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": "daemon",
        }

    @property
    def labels(self) -> dict[str, str]:
        return {**self.selector, "app.kubernetes.io/version": __version__}

    @property
    def release(self) -> str:
        """The owner of the served resources on a node."""
        return f"{self.namespace}/{self.name}"

    @property
    def cluster_name(self) -> str:
        """The name of cluster-wide objects: two namespaces can contain daemons with the same name."""
        return f"{self.namespace}-{self.name}"

    @property
    def metadata(self) -> Manifest:
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}


class PluginTarget(msgspec.Struct, frozen=True):
    """A plugin in the image: `MODULE:CLASS`, the directories it reads, and the resources it serves by claims."""

    plugin: str
    host_paths: tuple[str, ...] = ()
    serve: ServeMode = ServeMode.DEVICE_PLUGIN
    resources: tuple[str, ...] = ()


def for_file(text: str, file: ConfigFile, target: DaemonTarget) -> list[Manifest]:
    """The objects for an operator's file; the ConfigMap contains `text` unchanged."""
    served = manifest_claims.served_by_claims(file)
    extras = any(entry.family.extras for entry in file.resources)
    mounts = _host_mounts(file)
    if served:
        mounts.append(HostDirectory(file.host.cdi, written=True))
    daemon_set = _daemon_set(target, f"{_NAME}{'-tools' if extras else ''}:{__version__}")
    pod = daemon_set["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"].insert(0, {"name": "config", "mountPath": "/etc/plugwright", "readOnly": True})
    pod["volumes"].insert(0, {"name": "config", "configMap": {"name": target.name}})
    _mount_cdi(pod, file.host.cdi, mounts)
    return _objects(target, daemon_set, mounts, served, [_config_map(target, text)])


def for_plugin(plugin: PluginTarget, target: DaemonTarget) -> list[Manifest]:
    """The same objects for a plugin in the image, which needs no file."""
    daemon_set = _daemon_set(target, f"{_NAME}:{__version__}")
    pod = daemon_set["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    arguments.insert(1, plugin.plugin)
    mounted = {_CDI, *(mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"])}
    mounts = [HostDirectory(path) for path in plugin.host_paths if path not in mounted]
    served = []
    if plugin.serve is not ServeMode.DEVICE_PLUGIN:
        arguments.insert(2, f"--serve={plugin.serve.value}")
        served = [Served.of(resource, plugin.serve) for resource in sorted(set(plugin.resources))]
        mounts.append(HostDirectory(_CDI, written=True))
    _mount_cdi(pod, _CDI, mounts)
    return _objects(target, daemon_set, mounts, served, [])


def _objects(
    target: DaemonTarget,
    daemon_set: Manifest,
    mounts: Sequence[HostDirectory],
    served: Sequence[Served],
    config: Sequence[Manifest],
) -> list[Manifest]:
    pod = daemon_set["spec"]["template"]["spec"]
    pod["automountServiceAccountToken"] = bool(served)
    _mount(pod, mounts)
    return [
        *([] if _is_built_in(target.namespace) else [_namespace_object(target.namespace)]),
        _priority_class(target),
        _service_account(target),
        *manifest_claims.objects(served, target.namespace, target.name, target.labels),
        *config,
        daemon_set,
    ]


def _host_mounts(file: ConfigFile) -> list[HostDirectory]:
    """The directories of the node that the file's devices need."""
    mounts: list[HostDirectory] = []
    for entry in file.resources:
        for needed in entry.family.host_directories(entry, file.host):
            at = needed.mount_path or needed.path
            if at in TAKEN:
                raise ConfigError(
                    f"{entry.name}: {at} cannot be mounted at its own path in the daemon's pod: set host.root, for "
                    f"example to /host"
                )
            mounts.append(needed)
    return mounts


def _mount_cdi(pod: Manifest, cdi: str, mounts: Sequence[HostDirectory]) -> None:
    """Mounts the CDI directory for claims of an earlier configuration, unless `mounts` contains it for this one."""
    if cdi in {mount.mount_path or mount.path for mount in mounts}:
        return
    after = [volume["name"] for volume in pod["volumes"]].index("plugins") + 1
    pod["containers"][0]["volumeMounts"].insert(after, {"name": "cdi", "mountPath": cdi})
    pod["volumes"].insert(after, _host_path("cdi", cdi, "DirectoryOrCreate"))


def _mount(pod: Manifest, mounts: Sequence[HostDirectory]) -> None:
    """Mounts each directory once, in the order of the mount paths."""
    by_path = {mount.mount_path or mount.path: mount for mount in mounts}
    for number, (at, mount) in enumerate(sorted(by_path.items())):
        propagation = {"mountPropagation": "HostToContainer"} if mount.mounts else {}
        name, kind = f"host-{number}", "Directory" if mount.path in SYSTEM else "DirectoryOrCreate"
        pod["containers"][0]["volumeMounts"].append(
            {"name": name, "mountPath": at, "readOnly": not mount.written, **propagation}
        )
        pod["volumes"].append(_host_path(name, mount.path, kind))


def _is_built_in(namespace: str) -> bool:
    """A namespace of Kubernetes itself exists already, and `kubectl delete -f` must not remove it."""
    return namespace == "default" or namespace.startswith("kube-")


def _namespace_object(namespace: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}  # for the hostPath volumes alone
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


def _priority_class(target: DaemonTarget) -> Manifest:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": target.cluster_name, "labels": target.labels},
        "value": 1_000_000_000,
        "description": "Daemons that offer devices to the pods of their node",
    }


def _service_account(target: DaemonTarget) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": target.metadata,
        "automountServiceAccountToken": False,
    }


def _config_map(target: DaemonTarget, file: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": target.metadata,
        "data": {"plugwright.yaml": file},
    }


def _daemon_set(target: DaemonTarget, default_image: str) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": target.metadata,
        "spec": {
            "selector": {"matchLabels": target.selector},
            # Never two on one node: up to Kubernetes 1.36 the end of the old one would cut off the new one.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": target.selector}, "spec": _pod(target, target.image or default_image)},
        },
    }


def _pod(target: DaemonTarget, image: str) -> Manifest:
    return {
        "serviceAccountName": target.name,
        "enableServiceLinks": False,
        "priorityClassName": target.cluster_name,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [_container(target, image)],
        "volumes": _volumes(target.name),
    }


def _container(target: DaemonTarget, image: str) -> Manifest:
    return {
        "name": target.name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": _arguments(target.release),
        "env": [_field("NODE_NAME", "spec.nodeName"), _field("POD_UID", "metadata.uid")],
        **{
            name: {"exec": {"command": ["python", "-IS", "-c", code]}, "timeoutSeconds": 60, **numbers}
            for name, (code, numbers) in _PROBES.items()
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


def _arguments(release: str) -> list[str]:
    return [
        "run",
        f"--kubelet-dir={_KUBELET}",
        f"--device-plugins-dir={_KUBELET}/device-plugins",
        "--registration=direct",
        f"--release={release}",
        f"--node-dir={_NODE}",
        "--log-format=json",
        "--log-level=info",
        "--watchdog=30",
    ]


def _mounts() -> list[Manifest]:
    return [
        {"name": "device-plugins", "mountPath": f"{_KUBELET}/device-plugins"},
        # Also if no resource is served by claims: claims of an earlier configuration can still hold devices.
        {"name": "plugins-registry", "mountPath": f"{_KUBELET}/plugins_registry"},
        {"name": "plugins", "mountPath": f"{_KUBELET}/plugins"},
        {"name": "pod-resources", "mountPath": f"{_KUBELET}/pod-resources", "readOnly": True},
        {"name": "state", "mountPath": _STATE},
        {"name": "node", "mountPath": _NODE},
        {"name": "run", "mountPath": "/run/plugwright"},
    ]


def _volumes(name: str) -> list[Manifest]:
    state = _STATE if name == _NAME else f"{_STATE}-{name}"
    return [
        _host_path("device-plugins", f"{_KUBELET}/device-plugins", "Directory"),
        _host_path("plugins-registry", f"{_KUBELET}/plugins_registry", "DirectoryOrCreate"),
        _host_path("plugins", f"{_KUBELET}/plugins", "DirectoryOrCreate"),
        _host_path("pod-resources", f"{_KUBELET}/pod-resources", "Directory"),
        _host_path("state", state, "DirectoryOrCreate"),
        _host_path("node", _STATE, "DirectoryOrCreate"),  # the same for all releases on the node
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]


def _host_path(name: str, path: str, kind: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
