"""What can be set about how plugins are served."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from plugwright.protocol.paths import KubeletPaths

__all__ = ["Limits", "Registration", "Settings", "Timeouts"]


class Registration(StrEnum):
    """The two ways to a kubelet; one at a time, because two registrations of one resource cut each other off."""

    DIRECT = "direct"
    WATCHER = "watcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that the methods of a plugin may take."""

    allocate: float = 10.0
    prefer: float = 1.0
    pre_start: float = 25.0  # the kubelet gives up after 30
    command: float = 10.0
    loop_step: float = 1.0  # how long an async method may keep the event loop to itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds before something is done about what is wrong."""

    discovery: float = 30.0  # discover() fails: the devices keep their last health for this long
    departed: float = 60.0  # a device is gone: listed as Unhealthy for at least this long
    first_stream: float = 10.0  # registered, but the kubelet has asked for no list yet
    lost_stream: float = 0.2  # the kubelet ended its list: registered again after this, doubling each time
    retry: float = 0.01  # registering failed: tried again after this, doubling each time
    longest: float = 30.0  # what doubles ends here
    register: float = 15.0  # the kubelet needs up to 10 s to say that it cannot reach us
    burst: float = 0.05  # changes closer together than this are sent as one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How plugins are served. Directories that are not given come from the environment, then from the default."""

    kubelet_dir: str | Path | None = None
    device_plugins_dir: str | Path | None = None
    registration: Registration = Registration.DIRECT
    state_dir: Path | None = None  # where cordons are kept over restarts
    control_socket: Path | None = None
    listen: str = ""  # HOST:PORT for /healthz, /readyz and /metrics
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def paths(self) -> KubeletPaths:
        return KubeletPaths.under(self.kubelet_dir, self.device_plugins_dir)
