"""The emulated kubelet: admission, the device manager and the pod-resources API of a node, without a cluster.

Tests and programs use `Kubelet`; the modules beside it are named after upstream's packages. This package shares only
the wire format and the model with the SDK, so each checks the other.
"""

from plugwright.kubelet.kubelet import Kubelet
from plugwright.kubelet.pod_table import Phase, Pod
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.kubelet.settings import KubeletSettings, Timing

__all__ = ["ContainerKind", "ContainerSpec", "Kubelet", "KubeletSettings", "Phase", "Pod", "PodSpec", "Timing"]
