"""The published value of the ledger: every holding of a device on this node, and the sources that cannot be read."""

import time
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from plugwright.sdk.serve_settings import ServeMode

__all__ = ["DeviceKey", "Holding", "HoldingSource", "Holdings", "UnknownSource", "waiting_text"]


class HoldingSource(StrEnum):
    """The source of a holding."""

    ALLOCATE = "allocate"  # a call of Allocate that is missing in the kubelet's checkpoint so far
    CHECKPOINT = "checkpoint"  # the kubelet's device checkpoint: containers with devices of device plugins
    PREPARED_CLAIMS = "prepared-claims"  # the checkpoint of a DRA driver of ours
    CDI = "cdi"  # the CDI spec of a claim, which names every device of the claim
    POD_RESOURCES = "pod-resources"  # the kubelet's pod-resources API: both kinds, with the names of pods
    DRA_MANAGER_STATE = "dra-manager-state"  # the kubelet's file of prepared claims, outside of containers only


class DeviceKey(msgspec.Struct, frozen=True, order=True):
    """A device under the name by which an API offers it.

    `resource` is the extended resource, also for claims, unless only their driver's name is known.
    """

    api: ServeMode  # DEVICE_PLUGIN or DRA, never BOTH
    resource: str
    device_id: str


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A container or claim that holds one device.

    Empty strings are unknown, and so is a `since` of 0. `physical` contains the names of the hardware behind the
    device: the offered ones, or guesses from its id if this daemon never offered the device.
    """

    key: DeviceKey
    physical: tuple[str, ...] = ()
    sharing: str = ""  # holdings with the same non-empty text can share the hardware
    namespace: str = ""  # of the pod, and of the claim
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    claim: str = ""  # name of the ResourceClaim
    claim_uid: str = ""
    driver: str = ""  # name of the DRA driver that prepared the claim
    share_id: str = ""  # the claim's part of a shared device
    admin_access: bool = False  # monitors the device and takes nothing from other holders
    since: float = 0.0  # seconds since the epoch when the daemon first observed it
    source: HoldingSource = HoldingSource.CHECKPOINT

    @property
    def holder(self) -> str:
        """The holder as text, for reasons and logs."""
        if self.pod:
            return f"{self.namespace}/{self.pod}"
        if self.claim:
            return f"ResourceClaim {self.namespace}/{self.claim}"
        if self.claim_uid:
            return f"ResourceClaim with uid {self.claim_uid}"
        return "a pod" if not self.pod_uid else f"the pod with uid {self.pod_uid}"


class UnknownSource(msgspec.Struct, frozen=True):
    """A source that cannot be read: why, and since when in seconds since the epoch."""

    reason: str
    since: float


class Holdings(msgspec.Struct, frozen=True):
    """The complete content of the ledger. A device without a holding is free only if `is_complete`.

    `unknown` contains the needed sources that could not be read. `closed` are the offered devices that the ledger keeps
    back, with the reasons; `waiting` are those among them that wait for an unknown source.
    """

    holdings: tuple[Holding, ...] = ()
    unknown: Mapping[HoldingSource, UnknownSource] = {}
    closed: Mapping[DeviceKey, str] = {}
    waiting: Mapping[DeviceKey, str] = {}

    @property
    def is_complete(self) -> bool:
        return not self.unknown

    def of(self, resource: str, device_id: str) -> Iterator[Holding]:
        """The holdings of a device, through either API."""
        for holding in self.holdings:
            if (holding.key.resource, holding.key.device_id) == (resource, device_id):
                yield holding

    def pods(self, resource: str, device_id: str) -> tuple[str, ...]:
        """The pods that hold a device, as namespace/name; each once, regardless of the number of its containers."""
        names = (f"{holding.namespace}/{holding.pod}" for holding in self.of(resource, device_id) if holding.pod)
        return tuple(dict.fromkeys(sorted(names)))


_SOURCES = {
    HoldingSource.CHECKPOINT: "the kubelet's checkpoint",
    HoldingSource.POD_RESOURCES: "pod-resources",
}


def waiting_text(missing: Mapping[HoldingSource, UnknownSource]) -> str:
    """Why a device waits for these sources; empty if there are none."""
    texts = [
        f"{_SOURCES[source]} since {time.strftime('%H:%M:%S UTC', time.gmtime(unknown.since))}: {unknown.reason}"
        for source, unknown in missing.items()
    ]
    return f"it is not known who holds it: cannot read {'; '.join(texts)}" if texts else ""
