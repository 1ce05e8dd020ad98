"""The emulated kubelet: the device manager's half of the device-plugin system, without a cluster around it.

`Kubelet` is what a test or a program uses; the modules around it are its parts. It shares the wire and the values
with the SDK and nothing else, so that each checks the other.
"""

from plugwright.kubelet.kubelet import Kubelet
from plugwright.kubelet.pod_table import Phase, Pod
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.kubelet.settings import KubeletSettings, Timing

__all__ = ["ContainerKind", "ContainerSpec", "Kubelet", "KubeletSettings", "Phase", "Pod", "PodSpec", "Timing"]
