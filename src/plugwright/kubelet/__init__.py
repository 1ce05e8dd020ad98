"""The emulated kubelet: admission, the device manager and the pod-resources API of a node, without a cluster.

`Kubelet` is what a test or a program uses; the modules beside it have the names of upstream's packages. It shares the
wire format and the model with the SDK and nothing else, so that each checks the other.
"""

from plugwright.kubelet.kubelet import Kubelet
from plugwright.kubelet.pod_table import Phase, Pod
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.kubelet.settings import KubeletSettings, Timing

__all__ = ["ContainerKind", "ContainerSpec", "Kubelet", "KubeletSettings", "Phase", "Pod", "PodSpec", "Timing"]
