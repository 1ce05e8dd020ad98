"""The facts on which the ledger decides, and its decision about one device."""

from collections.abc import Callable, Mapping

import msgspec

from plugwright.sdk.holdings.holding import HoldingSource, UnknownSource, waiting_text
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["ClaimRecord", "Closed", "Facts", "Given", "Memory", "PodRecord", "ServedResource"]


class ServedResource(msgspec.Struct, frozen=True):
    """How a resource is offered; `is_arbitrated` if its driver keeps the two APIs apart for each device."""

    api: ServeMode
    driver: str
    is_arbitrated: bool = False


class Given(msgspec.Struct, frozen=True):
    """A device given out by Allocate: it counts as held until a checkpoint written after `answered` shows otherwise."""

    name: Name
    answered: float


class Memory(msgspec.Struct, frozen=True):
    """How hardware was last offered: by resource the API and the name of the driver, and each offer with an identity.

    The other fields are for the other releases on the node. `given` are the devices that they offer too and this
    release is giving out, `claimed` those held by this release's claims, which are listed in the files of the driver.
    `ended` are devices of theirs whose pods have ended: the kubelet writes that after one of their device lists (4.31).
    """

    resources: dict[str, tuple[ServeMode, str]] = {}
    offers: tuple[Offer, ...] = ()
    given: tuple[Given, ...] = ()
    claimed: tuple[Name, ...] = ()
    ended: tuple[Name, ...] = ()


class PodRecord(msgspec.Struct, frozen=True):
    """A container that holds a device through the device plugin API.

    `nodes` are its allocated device nodes, `names` its CDI devices and the values of its variables.
    """

    pod_uid: str = ""
    container: str = ""
    nodes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class ClaimRecord(msgspec.Struct, frozen=True):
    """A device of a prepared claim: `device` is its name in the slice, `device_id` its id in the plugin if known.

    `names` are the device nodes and the values of variables in its CDI spec.
    """

    driver: str
    device: str
    device_id: str = ""
    namespace: str = ""
    claim: str = ""
    uid: str = ""
    pod: str = ""
    share_id: str = ""
    admin_access: bool = False
    source: HoldingSource = HoldingSource.PREPARED_CLAIMS
    names: tuple[str, ...] = ()

    @property
    def holder(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.claim}" if self.claim else f"ResourceClaim with uid {self.uid}"


class Closed(msgspec.Struct, frozen=True):
    """Why a device is kept back; `waits` if that is only a precaution because a source cannot be read."""

    reason: str
    waits: bool = False


class Facts:
    """What the sources have shown. The last content of a source stays while it is in `unknown`.

    `claims_are_complete` if the files account for every possibly prepared claim; `claims_may_exist` is False if neither
    a driver of ours nor pod-resources has ever been on this node.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.unknown: dict[HoldingSource, UnknownSource] = {}
        self.stored: Mapping[Name, tuple[PodRecord, ...]] = {}  # by the checkpoint
        self.pods: Mapping[Name, tuple[str, str]] = {}  # by pod-resources: namespace and name
        self.claims: tuple[ClaimRecord, ...] = ()
        self.claims_are_complete, self.claims_may_exist = False, True
        self._clock = clock
        for source in (HoldingSource.CHECKPOINT, HoldingSource.POD_RESOURCES):
            self.fail(source, "it has not been read yet")

    def fail(self, source: HoldingSource, reason: str) -> None:
        """The source cannot be read."""
        since = self.unknown[source].since if source in self.unknown else self._clock()
        self.unknown[source] = UnknownSource(reason, since)

    @property
    def missing(self) -> list[HoldingSource]:
        """The unreadable sources without which a changed offer cannot be judged."""
        missing = [source for source in (HoldingSource.CHECKPOINT,) if source in self.unknown]
        if HoldingSource.POD_RESOURCES in self.unknown and not self.claims_are_complete:
            missing.append(HoldingSource.POD_RESOURCES)
        return missing

    def waiting_text(self) -> str:
        """Why a device waits for missing sources; empty if there are none."""
        return waiting_text({source: self.unknown[source] for source in self.missing})
