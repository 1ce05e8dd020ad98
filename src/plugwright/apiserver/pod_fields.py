"""Every field of a pod's spec, and its treatment by the embedded cluster. docs/cluster-limits.md is generated from it.

A field that is emulated or has no effect on an emulated node is only described. A pod that needs something that is not
emulated never runs without it: it stays Pending with a message that names the field, and is rejected if it has its own
nodeName. A test compares the list with Kubernetes' own types, so that no new field is forgotten.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from plugwright.apiserver.store import Object

__all__ = ["ADVICE", "POD_FIELDS", "PodField", "Treatment", "fields_page", "not_emulated"]

ADVICE = "use `plugwright join` with a real API server"

_CONTAINER_LISTS = ("initContainers", "containers")


class Treatment(StrEnum):
    EMULATED = "emulated"
    NO_EFFECT = "without effect"
    REFUSED = "refused"
    NOT_EMULATED = "not emulated"


@dataclass(frozen=True)
class PodField:
    """`path` starts below `spec`, and means every container if it starts with `containers`."""

    path: str
    treatment: Treatment
    text: str
    asks: Callable[[object], bool] = bool  # whether a value needs something that is not emulated

    def is_asked_for(self, spec: Object) -> bool:
        return any(self.asks(value) for paths in self._steps for value in _values(spec, paths))

    @cached_property
    def _steps(self) -> list[list[str]]:
        first, *rest = self.path.split(".")
        return [[part, *rest] for part in (_CONTAINER_LISTS if first == "containers" else (first,))]


def _values(content: object, steps: list[str]) -> Iterator[object]:
    for item in content if isinstance(content, list) else (content,):
        inner = item.get(steps[0]) if isinstance(item, dict) else None
        if inner is None:
            continue
        if len(steps) == 1:
            yield inner
        else:
            yield from _values(inner, steps[1:])


def not_emulated(spec: Object) -> str:
    """The message for a pod that needs something that is not emulated; empty otherwise."""
    asked = [field.path for field in _NOT_EMULATED if field.is_asked_for(spec)]
    return f"plugwright does not emulate {', '.join(asked)}; {ADVICE}" if asked else ""


def _emulated(path: str, text: str) -> PodField:
    return PodField(path, Treatment.EMULATED, text)


def _no_effect(path: str, text: str) -> PodField:
    return PodField(path, Treatment.NO_EFFECT, text)


def _refused(path: str, text: str) -> PodField:
    return PodField(path, Treatment.REFUSED, text)


def _missing(path: str, text: str, asks: Callable[[object], bool] = bool) -> PodField:
    return PodField(path, Treatment.NOT_EMULATED, text, asks)


_FOREIGN_VOLUMES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume", "flocker",
    "gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume", "quobyte",
    "rbd", "scaleIO", "storageos", "vsphereVolume",
)  # fmt: skip

POD_FIELDS = (
    _emulated("activeDeadlineSeconds", "the pod fails at the deadline"),
    _emulated("affinity.nodeAffinity", "required terms are filters, preferred ones are scored"),
    _emulated("affinity.podAffinity", "required terms are filters; preferred ones are not scored"),
    _emulated("affinity.podAntiAffinity", "as podAffinity, including the anti-affinity of running pods"),
    _no_effect("automountServiceAccountToken", "with `--run`, false keeps the cluster's token from a pod"),
    _no_effect("containers.args", "used only with `--run`"),
    _no_effect("containers.command", "used only with `--run`"),
    _no_effect("containers.env", "used only with `--run`"),
    _emulated("containers.env.valueFrom.configMapKeyRef", "a missing object keeps the container waiting"),
    _no_effect("containers.env.valueFrom.fieldRef", "used only with `--run`"),
    _missing("containers.env.valueFrom.fileKeyRef", "variables are not read from files"),
    _no_effect("containers.env.valueFrom.resourceFieldRef", "used only with `--run`"),
    _emulated("containers.env.valueFrom.secretKeyRef", "a missing object keeps the container waiting"),
    _emulated("containers.envFrom", "a missing object keeps the container waiting"),
    _no_effect("containers.image", "images are never pulled; every image counts as present on the node"),
    _no_effect("containers.imagePullPolicy", "images are never pulled"),
    _no_effect("containers.lifecycle", "hooks are not run, even with `--run`"),
    _no_effect("containers.livenessProbe", "probes are not run: a running container is alive"),
    _emulated("containers.name", "as on a real cluster"),
    _emulated("containers.ports", "a `hostPort` can be used once per node; nothing is forwarded"),
    _no_effect("containers.readinessProbe", "probes are not run: a running container is ready"),
    _no_effect("containers.resizePolicy", "pods are not resized: the `resize` subresource is not served"),
    _emulated("containers.resources", "requests are counted, devices allocated; other limits are not enforced"),
    _emulated("containers.restartPolicy", "`Always` makes an init container a sidecar; else only with `--run`"),
    _no_effect("containers.restartPolicyRules", "containers end and restart only with `--run`"),
    _no_effect("containers.securityContext", "nothing is confined; with `--run` processes run as your user"),
    _no_effect("containers.startupProbe", "probes are not run: a running container has started"),
    _no_effect("containers.stdin", "used only with `--run`"),
    _no_effect("containers.stdinOnce", "used only with `--run`"),
    _no_effect("containers.terminationMessagePath", "read only with `--run`"),
    _no_effect("containers.terminationMessagePolicy", "read only with `--run`"),
    _no_effect("containers.tty", "used only with `--run`"),
    _no_effect("containers.volumeDevices", "block devices need PersistentVolumeClaims, which are not served"),
    _no_effect("containers.volumeMounts", "nothing is mounted without `--run`"),
    _no_effect("containers.workingDir", "used only with `--run`"),
    _no_effect("dnsConfig", "no container resolves names"),
    _no_effect("dnsPolicy", "no container resolves names"),
    _no_effect("enableServiceLinks", "no container gets the addresses of Services"),
    _refused("ephemeralContainers", "as by a real cluster; what adds them later, `kubectl debug POD`, is not served"),
    _missing("evictionResponders", "evictions do not ask them"),
    _no_effect("hostAliases", "no container resolves names"),
    _no_effect("hostIPC", "there is no container to confine"),
    _emulated("hostNetwork", "the pod has the node's address and ports"),
    _no_effect("hostPID", "there is no container to confine"),
    _no_effect("hostUsers", "there is no container to confine"),
    _no_effect("hostname", "no container has a host name"),
    _no_effect("hostnameOverride", "no container has a host name"),
    _no_effect("imagePullSecrets", "images are never pulled"),
    _emulated("nodeName", "the node admits or rejects the pod as the kubelet does"),
    _emulated("nodeSelector", "as on a real cluster"),
    _emulated("os", "a pod for another system is rejected by its node"),
    _refused("overhead", "no RuntimeClass has any: refused with a real cluster's message"),
    _emulated("preemptionPolicy", "a pod that would have to preempt others stays Pending, and its status reports this"),
    _emulated("priority", "from the class; pods with higher priority are scheduled first. Preemption is not emulated"),
    _emulated("priorityClassName", "the class must exist; by default, the default class sets the priority"),
    _emulated("readinessGates", "as on a real cluster"),
    _emulated("resourceClaims", "allocated, reserved, prepared by DRA drivers, and freed after the pod"),
    _emulated("resources", "requests of the pod count instead of its containers'; limits are not enforced"),
    _no_effect("restartPolicy", "containers end and restart only with `--run`"),
    _refused("runtimeClassName", "there are no RuntimeClasses: refused with a real cluster's message"),
    _emulated("schedulerName", "pods of another scheduler are left to that scheduler, which may bind them"),
    _emulated("schedulingGates", "as on a real cluster"),
    _missing("schedulingGroup", "pods are scheduled one by one"),
    _no_effect("securityContext", "nothing is confined; with `--run` processes run as your user"),
    _emulated("serviceAccount", "the old name of serviceAccountName"),
    _emulated("serviceAccountName", "must exist; only with `--run` it has a token, that of the cluster's single user"),
    _no_effect("setHostnameAsFQDN", "no container has a host name"),
    _no_effect("shareProcessNamespace", "there is no container to confine"),
    _no_effect("subdomain", "no container has a host name"),
    _emulated("terminationGracePeriodSeconds", "without `--run` a pod is removed immediately"),
    _emulated("tolerations", "with `tolerationSeconds`"),
    _emulated("topologySpreadConstraints", "`DoNotSchedule` is a filter; `ScheduleAnyway` is not scored"),
    _emulated("volumes.configMap", "a missing object keeps the pod waiting; mounted only with `--run`"),
    _no_effect("volumes.downwardAPI", "mounted only with `--run`"),
    _no_effect("volumes.emptyDir", "mounted only with `--run`"),
    _missing("volumes.ephemeral", "PersistentVolumeClaims are not served"),
    _no_effect("volumes.hostPath", "mounted only with `--run`; the kubelet's and CDI directories are the node's"),
    _missing("volumes.image", "images are never pulled"),
    _emulated("volumes.persistentVolumeClaim", "not served: the pod waits, with a real cluster's message"),
    _emulated("volumes.projected", "a missing object keeps the pod waiting; mounted only with `--run`"),
    _emulated("volumes.secret", "a missing object keeps the pod waiting; mounted only with `--run`"),
    *(_missing(f"volumes.{name}", "remote file systems are not mounted") for name in _FOREIGN_VOLUMES),
)  # fmt: skip

_NOT_EMULATED = tuple(field for field in POD_FIELDS if field.treatment is Treatment.NOT_EMULATED)


def fields_page() -> str:
    """The tables of docs/cluster-limits.md, one per treatment."""
    sections = []
    for treatment in Treatment:
        fields = sorted((field.path, field.text) for field in POD_FIELDS if field.treatment is treatment)
        rows = "".join(f"| `{path}` | {text} |\n" for path, text in fields)
        sections.append(f"## {treatment.value.capitalize()}\n\n| field | here |\n|---|---|\n{rows}")
    return "\n".join(sections)
