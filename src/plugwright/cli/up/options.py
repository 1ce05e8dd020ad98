"""The options of `plugwright up`, in a module that loads nothing of the cluster."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["UpOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Times are seconds. Without `timeout` it runs until it is stopped; without `port` the last one is used again."""

    nodes: int = 1
    config: Path | None = None
    bare: bool = False
    kubeconfig: Path | None = None
    force: bool = False
    port: int | None = None
    timeout: float | None = None
    detach: bool = False
    processes: bool = False
    heartbeat: float = 10.0
    silence: float = 50.0
    plugin_grace: float = 300.0
