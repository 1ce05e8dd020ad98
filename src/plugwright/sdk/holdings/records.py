"""The facts on which the ledger decides, and its decision about one device."""

import msgspec

from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["ClaimRecord", "Closed", "Given", "Memory", "PodRecord", "ServedResource"]


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
