"""What was asked for on the command line of `plugwright up`."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Wish"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Times are seconds; `timeout` and `port` are None where nothing was said."""

    nodes: int = 1
    config: Path | None = None
    bare: bool = False
    kubeconfig: Path | None = None
    force: bool = False
    port: int | None = None
    timeout: float | None = None
    detach: bool = False
    starts: bool = False
    heartbeat: float = 10.0
    silence: float = 50.0
    plugin_grace: float = 300.0
