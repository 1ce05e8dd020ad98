"""Kinds that clients expect of a cluster and this API server rejects, with a sentence that names the alternative.

Discovery lists these kinds, so that kubectl sends its request and prints the sentence instead of "no matches for kind".
"""

from typing import NamedTuple

from plugwright.apiserver.pod_fields import ADVICE

__all__ = ["KINDS_NOT_SERVED", "NOT_SERVED_SUBRESOURCES", "KindNotServed", "kinds_page", "refusal"]


class KindNotServed(NamedTuple):
    """The names of a kind, as in discovery; its version is v1."""

    group: str
    plural: str
    name: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return refusal(f"{self.name} objects")


KINDS_NOT_SERVED = (
    KindNotServed("", "endpoints", "Endpoints", short_names=("ep",)),
    KindNotServed("", "limitranges", "LimitRange", short_names=("limits",)),
    KindNotServed("", "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",)),
    KindNotServed("", "persistentvolumes", "PersistentVolume", namespaced=False, short_names=("pv",)),
    KindNotServed("", "replicationcontrollers", "ReplicationController", short_names=("rc",)),
    KindNotServed("", "resourcequotas", "ResourceQuota", short_names=("quota",)),
    KindNotServed("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", False, ("crd",)),
    KindNotServed("apps", "controllerrevisions", "ControllerRevision"),
    KindNotServed("apps", "statefulsets", "StatefulSet", short_names=("sts",)),
    KindNotServed("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short_names=("hpa",)),
    KindNotServed("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    KindNotServed("networking.k8s.io", "ingresses", "Ingress", short_names=("ing",)),
    KindNotServed("node.k8s.io", "runtimeclasses", "RuntimeClass", namespaced=False),
    KindNotServed("policy", "poddisruptionbudgets", "PodDisruptionBudget", short_names=("pdb",)),
    KindNotServed("storage.k8s.io", "storageclasses", "StorageClass", namespaced=False, short_names=("sc",)),
)

NOT_SERVED_SUBRESOURCES = {
    ("pods", "ephemeralcontainers"): "`kubectl debug` of pods",
    ("pods", "proxy"): "the proxy of pods",
    ("pods", "resize"): "the resizing of pods",
    ("nodes", "proxy"): "the proxy of nodes",
    ("serviceaccounts", "token"): "tokens of service accounts",
    ("services", "proxy"): "the proxy of services",
}


def refusal(what: str) -> str:
    return f"plugwright does not emulate {what}; {ADVICE}"


def kinds_page() -> str:
    """The list of docs/cluster-limits.md."""
    names = ", ".join(sorted(kind.name for kind in KINDS_NOT_SERVED))
    parts = ", ".join(sorted(NOT_SERVED_SUBRESOURCES.values()))
    return f"{names}; {parts}"
