"""What all pods of one emulated node share: its settings, its kubelet, and where it reads and writes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from plugwright.cluster.container_env import ConfigSource
from plugwright.cluster.container_logs import ContainerLogs
from plugwright.cluster.events import ClusterClient, EventRecorder
from plugwright.cluster.node_status import NodeIdentity
from plugwright.cluster.pod_volumes import PodVolumes
from plugwright.kubelet import Kubelet

__all__ = ["NodeContext", "RuntimeSettings"]


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`processes`: containers run as processes of this machine. Seconds are those of `ProcessTiming`.

    `entrypoints` are those of images, by the last part of their names: there are no images to read them from.
    """

    processes: bool = False
    retry: float = 10.0
    back_off: float = 10.0
    longest_back_off: float = 300.0
    entrypoints: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"plugwright": (sys.executable, "-m", "plugwright")}
    )


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts that all pods of one node share; without a `source`, ConfigMaps and Secrets are the client's."""

    client: ClusterClient
    identity: NodeIdentity
    logs: ContainerLogs
    recorder: EventRecorder
    kubelet: Kubelet
    runtime: RuntimeSettings
    source: ConfigSource | None = None

    @property
    def volumes(self) -> PodVolumes:
        return PodVolumes(self.kubelet.paths.root if self.runtime.processes else None)
