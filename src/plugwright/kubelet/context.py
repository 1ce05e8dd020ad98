"""What every part of one kubelet shares: its settings, its directories, and where things are told."""

from dataclasses import dataclass

from plugwright.kubelet.findings import Findings
from plugwright.kubelet.profile import Profile
from plugwright.kubelet.settings import KubeletSettings
from plugwright.kubelet.trace import State, Trace
from plugwright.protocol.paths import KubeletPaths

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    settings: KubeletSettings
    paths: KubeletPaths
    trace: Trace
    findings: Findings

    @property
    def profile(self) -> Profile:
        return self.settings.profile

    def tell(self, kind: str, about: str, text: str = "") -> None:
        self.trace.add(State(kind, about, text))
