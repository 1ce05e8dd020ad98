"""What every part of one kubelet shares: its settings, its directories, and where things are told."""

from dataclasses import dataclass, field

from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.events import Findings, StateChange, Trace
from plugwright.kubelet.settings import KubeletSettings
from plugwright.kubelet.versions import Profile
from plugwright.protocol.paths import KubeletPaths

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """`node` is what the node's status says: it is kept by the API server, so it outlives the kubelet (2.19)."""

    settings: KubeletSettings
    paths: KubeletPaths
    trace: Trace
    findings: Findings
    node: dict[str, DeviceCount] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        return self.settings.profile

    def tell(self, kind: str, about: str, text: str = "") -> None:
        self.trace.add(StateChange(kind, about, text))
