"""Every exception of plugwright, by whose fault it is.

    PlugwrightError
    ├── ConfigError             the operator's: a wrong file, flag or environment variable
    │   ├── InvalidSetting          settings of a resource that cannot be followed
    │   └── PathTooLong             a socket path longer than the kernel allows
    ├── PluginError             the plugin author's: its code raised, hung, or returned a wrong value
    │   ├── InvalidValue            a device, an allocation or a name that could never work
    │   ├── HardwareMissing         the node has none of the plugin's hardware, or no driver for it
    │   ├── ListTooLarge            more devices than the kubelet accepts in one message
    │   ├── PluginFailed            a method of the plugin raised
    │   ├── PluginTimeout           a method of the plugin took longer than its limit
    │   └── CallUnfinished          a blocking call has no result: a disk, a driver or a server hangs
    │       └── CallTimedOut, CallNotStarted
    ├── ProtocolError           the peer broke a rule of the protocol
    │   ├── UnknownDevice, UnhealthyDevice, RepeatedDevice
    │   └── MalformedMessage        bytes that are not the expected message
    │       ├── MessageTooLarge         more bytes or values than this side accepts
    │       └── UnknownKind             an object of a kind that has no protobuf message
    ├── PeerGone                the peer cannot be reached, or went away during a call
    │   └── PeerSilent              it did not answer in time
    ├── NotVisible              this process cannot see a fact about the node
    ├── PeerRefused             the peer answered with an error
    ├── HoldersUnknown          the devices that pods hold cannot be read
    ├── ClaimRefused            a ResourceClaim cannot be prepared; the text is for the pod's owner
    │   ├── ClaimGone               there is no such claim with devices of this node
    │   └── ClaimWaits              not now: it is tried again
    ├── AllocationAborted       claims that cannot be allocated: an invalid claim, class, selector or pool
    │   └── FeatureUnsupported      their allocation depends on a feature or field that the allocator does not know
    ├── DirectoryReplaced       the kubelet's directory was deleted under a mount of it
    ├── CheckpointCorrupt       a checkpoint file that cannot be trusted
    ├── StateFileDamaged        a file of our own state that cannot be read
    │   └── StateFileNewer          a later version of plugwright has written it
    ├── StateFileLocked, StateFileTooLarge
    ├── DriverGone              a hardware driver is missing or does not answer
    ├── PluginNotRunning        a program under test is not registered, or has ended
    ├── RuleViolated, RuleNotApplicable, RuleNotChecked
    │   └── PrerequisiteBroken      what the rule starts from does not work: another rule names it
    ├── ClusterError            the embedded cluster cannot do what was asked
    │   ├── PatchFailed             a patch does not fit its document
    │   └── StatusError             a refusal of an API server, with code, reason and details
    │       └── NotFound, AlreadyExists, VersionConflict, Expired
    └── KubeletError            a refusal of the emulated kubelet, in the real one's words
        ├── InvalidPod              a pod that no API server would have accepted
        ├── AllocationFailed, ClaimNotPrepared, PodRefused
        ├── ContainerWaiting, ContainerConfigError, VolumeNotMounted
        └── KubeletFindings         in strict mode: what would go wrong with a real kubelet

They can be raised anywhere; only `protocol.grpc_errors` maps them to gRPC codes, and only `cli` prints them. Exceptions
for internal use can be defined in their own module; `tests/test_errors.py` lists them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugwright.text import described, line_of, quoted

# fmt: off
__all__ = [
    "AllocationAborted", "AllocationFailed", "AlreadyExists", "CallNotStarted", "CallTimedOut",
    "CallUnfinished",
    "CheckpointCorrupt", "ClaimGone", "ClaimNotPrepared", "ClaimRefused", "ClaimWaits", "ClusterError", "ConfigError",
    "ContainerConfigError", "ContainerWaiting", "DirectoryReplaced", "DriverGone", "Expired", "FeatureUnsupported",
    "HardwareMissing", "HoldersUnknown",
    "InvalidPod", "InvalidSetting", "InvalidValue", "KubeletError", "KubeletFindings", "ListTooLarge",
    "MalformedMessage", "MessageTooLarge", "NotFound", "NotVisible", "PatchFailed", "PathTooLong", "PeerGone",
    "PeerRefused", "PeerSilent",
    "PluginError", "PluginFailed", "PluginNotRunning", "PluginTimeout", "PlugwrightError", "PodRefused",
    "PrerequisiteBroken",
    "ProtocolError", "RepeatedDevice", "RuleNotApplicable", "RuleNotChecked", "RuleViolated", "StateFileDamaged",
    "StateFileLocked", "StateFileNewer", "StateFileTooLarge", "StatusError", "UnhealthyDevice", "UnknownDevice",
    "UnknownKind", "VersionConflict", "VolumeNotMounted",
]
# fmt: on


class PlugwrightError(Exception):
    """The base class; its text is one line for an operator to act on."""


class ConfigError(PlugwrightError):
    """A file, a flag or an environment variable has an unusable value.

    `path` is the place of the mistake in a file, if known, and `key` the invalid key there. `others` are the messages
    of further mistakes in the same file.
    """

    def __init__(self, message: str, path: str = "", key: str = "", others: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path, self.key, self.others = path, key, others


class NotVisible(PlugwrightError):
    """A fact about the node outside this process's view; everything depending on it is unknown."""


class InvalidSetting(ConfigError):
    """Settings of a resource have the right types but are unusable.

    `path` is the setting below the resource, such as `usb[1].vendor`; if empty, the family's whole key is wrong.
    """


class PathTooLong(ConfigError):
    """Linux allows at most 107 bytes for the path of a unix socket."""

    def __init__(self, path: str, limit: int) -> None:
        directory, _, name = path.rpartition("/")
        size = len(os.fsencode(path))
        super().__init__(
            f"{directory} is too deep for a socket: with a name of {len(os.fsencode(name))} bytes its path has {size}, "
            f"the kernel allows {limit}"
        )
        self.path, self.limit = path, limit


class PluginError(PlugwrightError):
    """The plugin's own code failed, or returned an invalid value."""


class InvalidValue(PluginError, ValueError):
    """An impossible device, allocation or name; rejected when it is made."""


class HardwareMissing(PluginError):
    """The node has none of the hardware. Raised by discover(): the resource is idle, and discover() is called again.

    `on_bus` names hardware present nevertheless, such as GPUs without a driver: the resource then reports it.
    """

    def __init__(self, reason: str, on_bus: str = "") -> None:
        super().__init__(reason)
        self.on_bus = on_bus


class ListTooLarge(PluginError):
    """The kubelet would cut the stream on a device list of this size."""

    def __init__(self, resource: str, count: int, size: int, limit: int) -> None:
        super().__init__(
            f"{resource} lists {count} devices in {size} bytes, the kubelet accepts {limit} bytes in one message"
        )
        self.resource, self.count, self.size, self.limit = resource, count, size, limit


class PluginFailed(PluginError):
    """A method of the plugin raised; the cause is the exception, `where` the line of the plugin's own code."""

    def __init__(self, resource: str, method: str, cause: BaseException) -> None:
        self.where = line_of(cause)
        place = f" at {self.where}" if self.where else ""
        super().__init__(f"{method}() of {resource} failed: {described(cause)}{place}")
        self.resource, self.method = resource, method


class PluginTimeout(PluginError):
    """A method of the plugin did not end within its limit."""

    def __init__(self, resource: str, method: str, limit: float) -> None:
        super().__init__(f"{method}() of {resource} did not end within {limit:g} s")
        self.resource, self.method, self.limit = resource, method, limit


class CallUnfinished(PluginError, OSError):
    """A blocking call has no result; handlers of plugin errors and of disk errors both handle it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.strerror = text  # handlers of OSErrors show it


class CallTimedOut(CallUnfinished, TimeoutError):
    """A blocking call did not end within its limit; its thread can still be running."""

    def __init__(self, name: str, limit: float) -> None:
        super().__init__(f"{name} did not end within {limit:g} s")
        self.name, self.limit = name, limit


class CallNotStarted(CallUnfinished):
    """A blocking call was not started: too many earlier calls hang, or no thread is available."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} not started: {reason}")
        self.name, self.reason = name, reason


class ProtocolError(PlugwrightError):
    """The peer violated the protocol."""


class _DeviceError(ProtocolError):
    def __init__(self, resource: str, device_ids: Sequence[str], text: str) -> None:
        super().__init__(text)
        self.resource, self.device_ids = resource, tuple(device_ids)


class UnknownDevice(_DeviceError):
    """The kubelet requested a device never listed by discovery."""

    def __init__(self, resource: str, device_ids: Sequence[str]) -> None:
        super().__init__(resource, device_ids, f"{resource} has no device {quoted(device_ids)}")


class UnhealthyDevice(_DeviceError):
    """The kubelet requested a currently unusable device."""

    def __init__(self, resource: str, reasons: dict[str, str]) -> None:
        named = ", ".join(f"{device_id!r} ({reason or 'no reason given'})" for device_id, reason in reasons.items())
        super().__init__(resource, list(reasons), f"unhealthy in {resource}: {named}")
        self.reasons = reasons


class RepeatedDevice(_DeviceError):
    """The kubelet requested one device more than once for one container."""

    def __init__(self, resource: str, device_ids: Sequence[str]) -> None:
        super().__init__(resource, device_ids, f"asked for more than once from {resource}: {quoted(device_ids)}")


class MalformedMessage(ProtocolError):
    """Received bytes are not the message of the method."""


class MessageTooLarge(MalformedMessage):
    """A message or a response has more bytes or values than this side accepts."""


class UnknownKind(MalformedMessage):
    """An object of a kind without a protobuf message."""


class PeerGone(PlugwrightError):
    """The peer is unreachable, or disconnected during a call; `message` is the text of its gRPC status, if any."""

    def __init__(self, text: str, message: str = "") -> None:
        super().__init__(text)
        self.message = message


class PeerSilent(PeerGone):
    """The peer did not respond within the time limit."""


class PeerRefused(PlugwrightError):
    """The peer responded with an error; `code` is the name of its gRPC status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})" if message and code else message or code)
        self.code, self.message = code, message


class HoldersUnknown(PlugwrightError):
    """The devices held by pods cannot be read."""


class ClaimRefused(PlugwrightError):
    """A ResourceClaim cannot be prepared on this node; the text reaches the owner of its pod."""


class ClaimGone(ClaimRefused):
    """The claim does not exist, was replaced, or was not given devices of this node."""


class ClaimWaits(ClaimRefused):
    """The claim cannot be prepared now: a device is held, missing or failing, or the API server does not respond."""


class AllocationAborted(PlugwrightError):
    """Claims cannot be allocated, in kube-scheduler's words.

    `on_node` if the claims could still fit another node. Otherwise the claim, its class or a selector has to change
    first. `reasons` are the known `Reason`s.
    """

    def __init__(self, message: str, on_node: bool = False, reasons: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.on_node, self.reasons = on_node, tuple(reasons)


class FeatureUnsupported(AllocationAborted):
    """The allocation depends on an unsupported feature or field; the claim waits."""

    def __init__(self, feature: str, message: str) -> None:
        super().__init__(message)
        self.feature = feature


class DirectoryReplaced(PlugwrightError):
    """A mount still shows a deleted directory; only a restart with a new mount shows its replacement."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory} was deleted on the node, and its mount here still shows the deleted one")
        self.directory = directory


class CheckpointCorrupt(PlugwrightError):
    """A checkpoint file does not parse, or its checksum is wrong."""


class StateFileDamaged(PlugwrightError):
    """A state file cannot be read; `kept` is its new path if it was set aside, None if it was left in place."""

    def __init__(self, path: Path, problem: str, kept: Path | None = None) -> None:
        place = f"; it is kept as {kept.name}" if kept is not None else ""
        super().__init__(f"cannot read {path}: {problem}{place}")
        self.path, self.problem, self.kept = path, problem, kept


class StateFileNewer(StateFileDamaged):
    """A later version of plugwright has written the state file."""


class StateFileLocked(PlugwrightError, TimeoutError):
    """Another process has held the lock on a state file for too long."""

    def __init__(self, lock: Path, limit: float) -> None:
        super().__init__(f"another process has had {lock} locked for {limit:g} s")
        self.strerror = str(self)
        self.lock, self.limit = lock, limit


class StateFileTooLarge(PlugwrightError, OSError):
    """The new content of a state file is larger than its reader accepts; nothing was written."""

    def __init__(self, path: Path, size: int, limit: int) -> None:
        super().__init__(f"{path} must have at most {limit} bytes, got {size}; nothing was written")
        self.strerror = str(self)
        self.path, self.size, self.limit = path, size, limit


class DriverGone(PlugwrightError):
    """A driver does not respond, or is certainly `unloaded`: then its devices have been reset when it returns."""

    def __init__(self, reason: str, unloaded: bool = False) -> None:
        super().__init__(reason)
        self.unloaded = unloaded


class PluginNotRunning(PlugwrightError):
    """The program under test is not registered or has ended, although a rule needs it."""


class RuleViolated(PlugwrightError):
    """The program under test violates the rule: the expected and the observed behaviour."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(f"{expected}; {seen}")
        self.expected, self.seen = expected, seen


class PrerequisiteBroken(RuleViolated):
    """A prerequisite step of several rules failed; `rule_id` is the rule about this step."""

    def __init__(self, rule_id: str, expected: str, seen: str) -> None:
        super().__init__(expected, seen)
        self.rule_id = rule_id


class RuleNotApplicable(PlugwrightError):
    """The rule cannot be checked on this program; the text is the reason."""


class RuleNotChecked(PlugwrightError):
    """The check of the rule would take longer than a run; the text is the reason."""


class ClusterError(PlugwrightError):
    """The embedded cluster rejects a request, if possible with the real API server's text."""


class PatchFailed(ClusterError):
    """A patch does not match its document."""


class StatusError(ClusterError):
    """An API server rejects a request; code, reason, message and details are those of its `Status`."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details or {}


class NotFound(StatusError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(404, "NotFound", f'{kind} "{name}" not found', {"name": name, "kind": kind})


class AlreadyExists(StatusError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(409, "AlreadyExists", f'{kind} "{name}" already exists', {"name": name, "kind": kind})


class VersionConflict(StatusError):
    """The object has changed since the writer's resource version."""

    def __init__(self, kind: str, name: str) -> None:
        text = "the object has been modified; please apply your changes to the latest version and try again"
        message = f'Operation cannot be fulfilled on {kind} "{name}": {text}'
        super().__init__(409, "Conflict", message, {"name": name, "kind": kind})


class Expired(StatusError):
    """The history no longer contains the revision: the reader has to list again."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(410, "Expired", f"too old resource version: {revision} ({oldest})")


class KubeletError(PlugwrightError):
    """The emulated kubelet refuses, with the real kubelet's message."""


class InvalidPod(KubeletError):
    """A pod rejected by any API server; `path` is like `$.spec.containers[0].resources`, `key` a key there."""

    def __init__(self, text: str, path: str = "$", key: str = "") -> None:
        super().__init__(text)
        self.path, self.key = path, key


class AllocationFailed(KubeletError):
    """A container cannot get its devices; the text is the kubelet's."""


class ClaimNotPrepared(KubeletError):
    """A pod's ResourceClaims cannot be prepared or unprepared; the text is the kubelet's, which retries."""


class PodRefused(KubeletError):
    """A pod was not admitted: it has failed permanently, with the reason and message of its status."""

    def __init__(self, pod: str, reason: str, message: str) -> None:
        super().__init__(f"{pod} refused, {reason}: {message}")
        self.pod, self.reason, self.message = pod, reason, message


class ContainerWaiting(KubeletError):
    """A container is not running; a real kubelet would retry repeatedly."""

    def __init__(self, container: str, reason: str, message: str) -> None:
        super().__init__(f"container {container} waits, {reason}: {message}")
        self.container, self.reason, self.message = container, reason, message


class ContainerConfigError(KubeletError):
    """A container refers to a missing object; a real kubelet would retry repeatedly."""


class VolumeNotMounted(KubeletError):
    """A volume of a pod cannot be set up; until it is, none of the pod's containers is created."""

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {problem}')
        self.volume = volume


class KubeletFindings(KubeletError):
    """In strict mode: something would go wrong with a real kubelet."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__("; ".join(findings))
        self.findings = tuple(findings)
