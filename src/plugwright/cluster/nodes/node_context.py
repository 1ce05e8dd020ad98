"""The common context of all pods of an emulated node: settings, kubelet, and where it reads and writes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from plugwright.cluster.container_logs import ContainerLogs
from plugwright.cluster.events import EventRecorder, NodeClient
from plugwright.cluster.nodes.api_access import ServiceAccountFiles
from plugwright.cluster.nodes.container_env import ConfigSource
from plugwright.cluster.nodes.node_status import NodeIdentity
from plugwright.cluster.nodes.pod_volumes import PodVolumes
from plugwright.kubelet import Kubelet
from plugwright.kubelet.dra.resource_api import KubeClient

__all__ = ["NodeContext", "NodeSources", "RuntimeSettings"]


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`processes`: containers run as processes of this machine. Seconds are those of `ProcessTiming`.

    `entrypoints` are those of images, by the last part of their names, because there are no images. Without
    `references` the existence of a pod's ConfigMaps, Secrets and volumes is not checked.
    """

    processes: bool = False
    retry: float = 10.0
    back_off: float = 10.0
    longest_back_off: float = 300.0
    entrypoints: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"plugwright": (sys.executable, "-m", "plugwright")}
    )
    references: bool = True
    api: ServiceAccountFiles | None = None  # for containers that are processes


@dataclass(frozen=True, slots=True)
class NodeSources:
    """The sources of claims, ConfigMaps and Secrets for a node of another API server."""

    resource_api: KubeClient
    config: ConfigSource


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The common parts of all pods of a node; without a `source`, ConfigMaps and Secrets are the client's."""

    client: NodeClient
    identity: NodeIdentity
    logs: ContainerLogs
    recorder: EventRecorder
    kubelet: Kubelet
    runtime: RuntimeSettings
    source: ConfigSource | None = None

    @property
    def volumes(self) -> PodVolumes:
        return PodVolumes(self.kubelet.paths.root if self.runtime.processes else None)
