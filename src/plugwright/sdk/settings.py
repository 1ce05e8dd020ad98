"""Settings of a daemon: directories, kind of registration, addresses, time limits."""

import math
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec.structs import fields, force_setattr

from plugwright.errors import ConfigError
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.cordons import CordonRule

__all__ = ["Limits", "Registration", "Settings", "Timeouts"]


class Registration(StrEnum):
    """The two kinds of registration, of which one is used: two registrations of a resource disconnect each other."""

    DIRECT = "direct"  # the plugin calls Register on kubelet.sock
    WATCHER = "watcher"  # the kubelet's plugin watcher finds the socket in plugins_registry


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a plugin's methods, in seconds."""

    allocate: float = 10.0  # afterwards Allocate fails, and the kubelet refuses the pod
    prefer: float = 1.0  # afterwards the default preference is used
    pre_start: float = 25.0  # afterwards the container does not start; the kubelet itself gives up after 30 (0.8)
    command: float = 10.0  # afterwards the operator's command fails
    loop_step: float = 1.0  # an async method that blocks the event loop longer is logged as a stall
    stop: float = 2.0  # a cancelled discover() that has not ended is abandoned
    heartbeat: float = 2.0  # afterwards /healthz and `status` report that the event loop is blocked, and where

    def __post_init__(self) -> None:
        _check_seconds(self)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds before the daemon reacts to a problem."""

    discovery: float = 30.0  # discover() fails: devices keep their last health for this long, then become Unhealthy
    departed: float = 60.0  # a removed device stays listed as Unhealthy for at least this long
    holders: float = 10.0  # interval of reading which devices pods hold, while the end of a pod matters
    in_flight: float = 30.0  # a device that leaves DRA has its taint for this long before claims are searched for it
    wiped: float = 35.0  # a driver that ends earlier claims registers after this; the kubelet removes slices after 30
    first_stream: float = 10.0  # registered without a ListAndWatch call for this long: registered again
    lost_stream: float = 0.2  # the kubelet ended ListAndWatch: registered again after this, doubled each time
    retry: float = 0.01  # registration failed: retried after this, doubled each time
    longest: float = 30.0  # limit of that doubling
    checkpoint: float = 5.0  # the kubelet's checkpoint could not be read for this long: served without it
    register: float = 15.0  # one Register call; the kubelet tries to connect back for 10 before it answers (2.1)
    restart: float = 0.1  # a part of a resource failed: restarted after this, doubled up to 5 s
    steady: float = 60.0  # after this long without a failure, the back-off starts again
    audit: float = 2.0  # after an allocation: the kubelet's pods are listed after this, and later twice more
    burst: float = 0.05  # changes of the device list closer together than this are sent as one

    def __post_init__(self) -> None:
        _check_seconds(self)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a daemon. A directory of None comes from the environment, then from the default."""

    kubelet_dir: str | Path | None = None  # PLUGWRIGHT_KUBELET_DIR, then /var/lib/kubelet
    device_plugins_dir: str | Path | None = None  # PLUGWRIGHT_DEVICE_PLUGINS_DIR, then device-plugins below it
    registration: Registration = Registration.DIRECT
    node_name: str = ""  # name of this node in the API server, for DRA drivers; NODE_NAME
    pod_uid: str = ""  # UID of this pod; needed for rolling updates with maxSurge; POD_UID
    kubeconfig: Path | None = None  # for DRA drivers; None: the pod's service account, then KUBECONFIG
    release: str = "plugwright"  # owns the served resources and their state: namespace/name; PLUGWRIGHT_RELEASE
    state_dir: Path | None = None  # state over restarts, of each release in its own directory; None: not kept
    node_dir: Path | None = None  # cordons and owners, shared by the node's daemons; None: the state directory
    control_socket: Path | None = None  # None: no control socket
    listen: str = ""  # HOST:PORT for /healthz, /readyz and /metrics; empty: no HTTP
    node_addresses: tuple[str, ...] = ()  # addresses of the probing node, or "gateway"; others never crowd it out
    tls_cert: Path | None = None  # with its key: enables TLS on that port
    tls_key: Path | None = None
    metrics_token_file: Path | None = None  # /metrics requires the bearer token in this file; None: no token
    listen_report: bool = False  # that port also serves the NodeReport and the history, to every client
    cordons: tuple[CordonRule, ...] = ()  # of the configuration that the daemon starts with
    watchdog: float = 0.0  # seconds after which a process whose event loop hangs ends itself; 0: never
    limits: Limits = msgspec.field(default_factory=Limits)
    timeouts: Timeouts = msgspec.field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        """Also converts strings to paths, and the name of a registration to the enum's member."""
        for item in fields(self):
            if item.type in (Path | None, str | Path | None):
                force_setattr(self, item.name, _path(item.name, getattr(self, item.name)))
        force_setattr(self, "registration", _registration(self.registration))
        for name, kind in (
            ("release", str),
            ("node_name", str),
            ("pod_uid", str),
            ("listen", str),
            ("limits", Limits),
            ("timeouts", Timeouts),
        ):
            if not isinstance(getattr(self, name), kind):
                raise _wrong(name, f"a {kind.__name__}", getattr(self, name))
        if self.listen_report and not self.listen:
            raise ConfigError("the NodeReport needs an address to listen on (--listen)")
        # API servers remove the Authorization header from requests to pods.
        if self.listen_report and self.metrics_token_file is not None:
            raise ConfigError("the NodeReport cannot be on a port whose metrics need a token: it would need none")
        if not all(map(DNS_SUBDOMAIN.fullmatch, self.release.split("/"))):
            raise _wrong("release", "lower-case names separated by '/', as namespace/name", self.release)

    @property
    def node_directory(self) -> Path | None:
        """The directory shared by all plugwright daemons of the node; None if nothing is stored."""
        return self.node_dir or self.state_dir

    @property
    def paths(self) -> KubeletPaths:
        return KubeletPaths.under(self.kubelet_dir, self.device_plugins_dir)


def _path(name: str, path: object) -> Path | None:
    if path is None or (isinstance(path, str | Path) and str(path)):
        return None if path is None else Path(path)
    raise _wrong(name, "a path", path)


def _registration(way: str) -> Registration:
    try:
        return Registration(way)
    except ValueError:
        raise _wrong("registration", f"one of {', '.join(Registration)}", way) from None


def _check_seconds(settings: Limits | Timeouts) -> None:
    for item in fields(settings):
        seconds = getattr(settings, item.name)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not math.isfinite(seconds) or seconds < 0:
            name = f"{type(settings).__name__.lower()}.{item.name}"
            raise _wrong(name, "a number of seconds, 0 or more", seconds)


def _wrong(name: str, must_be: str, value: object) -> ConfigError:
    return ConfigError(f"{name} of the settings must be {must_be}, got {value!r}")
