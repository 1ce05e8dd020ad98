"""Every exception plugwright raises, by whose fault it is.

    PlugwrightError
    ├── ConfigError             the operator's: a file, a flag or a variable says something wrong
    │   └── PathTooLong             a socket path beyond what the kernel takes
    ├── PluginError             the plugin author's: its code raised, hung, or returned nonsense
    │   ├── InvalidValue            a device, an allocation or a name that cannot be
    │   ├── ListTooLarge            more devices than the kubelet accepts in one message
    │   ├── PluginFailed            a method of the plugin raised
    │   └── PluginTimeout           a method of the plugin took longer than its limit
    ├── ProtocolError           the peer broke a rule of the protocol
    │   ├── UnknownDevice, UnhealthyDevice, RepeatedDevice
    │   └── MalformedMessage        bytes that are no message of the kind expected
    ├── PeerGone                the peer is not there, or went away in the middle
    │   └── PeerSilent              it may be there, and did not answer in time
    ├── PeerRefused             the peer answered, and the answer was no
    ├── CheckpointCorrupt       a checkpoint file that cannot be trusted
    ├── ClusterError            the embedded cluster cannot do what was asked
    └── KubeletError            what the emulated kubelet says no to, in the real one's words
        ├── InvalidPod              a pod that no API server would have handed over
        ├── AllocationFailed        a container cannot get its devices
        ├── PodRefused              a pod was not admitted
        ├── ContainerWaiting        a container of an admitted pod could not be started
        └── KubeletFindings         in strict mode: what a real kubelet would have stumbled over

Raised anywhere; turned into gRPC codes in `protocol.status` alone, printed in `cli` alone.
"""

import os
from collections.abc import Sequence

__all__ = [
    "AllocationFailed",
    "CheckpointCorrupt",
    "ClusterError",
    "ConfigError",
    "ContainerWaiting",
    "InvalidPod",
    "InvalidValue",
    "KubeletError",
    "KubeletFindings",
    "ListTooLarge",
    "MalformedMessage",
    "PathTooLong",
    "PeerGone",
    "PeerRefused",
    "PeerSilent",
    "PluginError",
    "PluginFailed",
    "PluginTimeout",
    "PlugwrightError",
    "PodRefused",
    "ProtocolError",
    "RepeatedDevice",
    "UnhealthyDevice",
    "UnknownDevice",
]


class PlugwrightError(Exception):
    """The root of them all; its text is one line that an operator can act on."""


class ConfigError(PlugwrightError):
    """A file, a flag or an environment variable says something that cannot be done."""


class PathTooLong(ConfigError):
    """Linux takes at most 107 bytes for the path of a unix socket."""

    def __init__(self, path: str, limit: int) -> None:
        directory, _, name = path.rpartition("/")
        size = len(os.fsencode(path))
        super().__init__(
            f"{directory} is too deep for a socket: with a name of {len(os.fsencode(name))} bytes its path has {size}, "
            f"the kernel takes {limit}"
        )
        self.path, self.limit = path, limit


class PluginError(PlugwrightError):
    """The plugin's own code did something that cannot be passed on to the kubelet."""


class InvalidValue(PluginError, ValueError):
    """A device, an allocation or a name that could never work; refused where it is made."""


class ListTooLarge(PluginError):
    """The kubelet would cut the stream on a device list of this size."""

    def __init__(self, resource: str, count: int, size: int, limit: int) -> None:
        super().__init__(
            f"{resource} lists {count} devices in {size} bytes, the kubelet takes {limit} bytes in one message"
        )
        self.resource, self.count, self.size, self.limit = resource, count, size, limit


class PluginFailed(PluginError):
    """A method of the plugin raised; the cause is the exception it raised."""

    def __init__(self, resource: str, method: str, cause: BaseException) -> None:
        super().__init__(f"{method}() of {resource} failed: {_in_one_line(cause)}")
        self.resource, self.method = resource, method


class PluginTimeout(PluginError):
    """A method of the plugin did not end within its limit."""

    def __init__(self, resource: str, method: str, limit: float) -> None:
        super().__init__(f"{method}() of {resource} did not end within {limit:g} s")
        self.resource, self.method, self.limit = resource, method, limit


class ProtocolError(PlugwrightError):
    """The other side did what the protocol does not allow."""


class _DeviceError(ProtocolError):
    def __init__(self, resource: str, device_ids: Sequence[str], text: str) -> None:
        super().__init__(text)
        self.resource, self.device_ids = resource, tuple(device_ids)


class UnknownDevice(_DeviceError):
    """The kubelet asked for a device that discovery never announced."""

    def __init__(self, resource: str, device_ids: Sequence[str]) -> None:
        super().__init__(resource, device_ids, f"{resource} has no device {_quoted(device_ids)}")


class UnhealthyDevice(_DeviceError):
    """The kubelet asked for a device that cannot be used now."""

    def __init__(self, resource: str, reasons: dict[str, str]) -> None:
        named = ", ".join(f"{device_id!r} ({reason or 'no reason given'})" for device_id, reason in reasons.items())
        super().__init__(resource, list(reasons), f"unhealthy in {resource}: {named}")
        self.reasons = reasons


class RepeatedDevice(_DeviceError):
    """The kubelet asked for one device more than once for one container."""

    def __init__(self, resource: str, device_ids: Sequence[str]) -> None:
        super().__init__(resource, device_ids, f"asked for more than once from {resource}: {_quoted(device_ids)}")


class MalformedMessage(ProtocolError):
    """Bytes arrived that are no message of the kind the method takes."""


class PeerGone(PlugwrightError):
    """The peer is not there, or went away in the middle of a call; `message` is what it said, if it did."""

    def __init__(self, text: str, message: str = "") -> None:
        super().__init__(text)
        self.message = message


class PeerSilent(PeerGone):
    """The peer did not answer within the time it was given."""


class PeerRefused(PlugwrightError):
    """The peer answered with an error; `code` is the gRPC name of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})" if message and code else message or code)
        self.code, self.message = code, message


class CheckpointCorrupt(PlugwrightError):
    """A checkpoint file does not parse, or its checksum says that it is not what was written."""


class ClusterError(PlugwrightError):
    """The embedded cluster cannot do what was asked; the text is the real API server's where there is one."""


class KubeletError(PlugwrightError):
    """The emulated kubelet says no, in the words of the real one."""


class InvalidPod(KubeletError):
    """A pod that cannot be read, or that an API server would never have handed to a kubelet."""


class AllocationFailed(KubeletError):
    """A container cannot get its devices; the text is the kubelet's."""


class PodRefused(KubeletError):
    """A pod was not admitted: it has failed for good, with the reason and message its status shows."""

    def __init__(self, pod: str, reason: str, message: str) -> None:
        super().__init__(f"{pod} refused, {reason}: {message}")
        self.pod, self.reason, self.message = pod, reason, message


class ContainerWaiting(KubeletError):
    """A container is not running; a real kubelet would try again and again."""

    def __init__(self, container: str, reason: str, message: str) -> None:
        super().__init__(f"container {container} waits, {reason}: {message}")
        self.container, self.reason, self.message = container, reason, message


class KubeletFindings(KubeletError):
    """In strict mode: a real kubelet would have done something that nobody wants."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__("; ".join(findings))
        self.findings = tuple(findings)


def _in_one_line(cause: BaseException) -> str:
    kind = type(cause).__name__
    try:
        text = " ".join(str(cause).split())
    except Exception:  # noqa: BLE001  an exception of the author's whose __str__ raises is still to be named
        text = ""
    return f"{kind}: {text}" if text else kind


def _quoted(device_ids: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(device_id) for device_id in device_ids[:most])
    return shown if len(device_ids) <= most else f"{shown} and {len(device_ids) - most} more"
