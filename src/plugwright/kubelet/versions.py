"""The differences between kubelet versions, as data.

The components ask a `VersionProfile` for a behaviour and never for a version number. Versions 1.36 and 1.37 are
described in full: the whole difference of their device managers is here, but for the resize of a pod (3.7), which the
emulated kubelet has not.
"""

import functools
import re
from dataclasses import dataclass

from plugwright.errors import ConfigError

__all__ = ["DEFAULT_VERSION", "LEGACY", "SUPPORTED_VERSIONS", "VersionProfile", "nearest", "profile"]

DEFAULT_VERSION = "1.36"
LEGACY = "legacy"
_OLDEST, _NEWEST = (1, 26), (1, 37)
SUPPORTED_VERSIONS = "{}.{} to {}.{}".format(*_OLDEST, *_NEWEST)
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_LAST_PATCH = 10**6  # a minor version alone, such as 1.34, means its newest patch release


@dataclass(frozen=True, slots=True)
class VersionProfile:
    """The behaviour of one version; every default is 1.36's."""

    name: str = DEFAULT_VERSION
    # At its start the kubelet removes only sockets from the plugin directory, not every file (1.18).
    cleans_only_sockets: bool = True
    # The kubelet creates an empty file DEPRECATION in the plugin directory (1.19).
    writes_deprecation: bool = False
    # A plugin without GetDevicePluginOptions, as the first plugins were, is accepted (1.33).
    options_may_be_missing: bool = False
    # Endpoints are known by their socket: a connected endpoint is refused (1.35), a failed registration forgets those
    # on the same socket alone (1.37), a removed socket ends its own (1.52), and a survivor takes over (2.22).
    endpoint_by_socket: bool = False
    # The pod of a device whose health changes is found by resource and id, not by the id alone (7.8).
    health_by_resource: bool = False
    # The checkpoint layout without NUMA nodes is read too (4.11).
    reads_plain_lists: bool = False
    # A container is refused when no device is healthy or a device it holds is not (3.16, 3.17).
    refuses_unhealthy: bool = True
    # A container running during a restart of the kubelet is not allocated again (3.14).
    skips_running: bool = True
    # Every runtime container of this name is examined, not only one (3.14).
    sees_every_running: bool = True
    # CDI device names reach the container runtime (3.56).
    takes_cdi: bool = True
    # Later containers cannot reuse the devices of a sidecar (3.33).
    keeps_sidecars: bool = True
    # The pod-resources API lists sidecars (6.6).
    lists_sidecars: bool = True
    # The pod-resources List has active pods only (6.4).
    lists_active_only: bool = True
    # If an allocated device disappears from the list, the kubelet can crash (2.25).
    crashes_on_dropped: bool = True
    # Topology hints only combine NUMA nodes with devices of the resource (5.6).
    narrows_masks: bool = True
    # The pod status has the health of the pod's devices (7.1).
    reports_device_health: bool = True
    # DRA drivers are called: plugins of their type register (11.1).
    prepares_claims: bool = True
    # A DRA driver is asked for health only if announced, in the newest version of both (11.23).
    asks_announced_health: bool = False
    # Health of so many devices of a DRA driver is kept, and none of further ones (11.26d); 0: of all.
    health_entries: int = 0
    # A claim in use by another pod stays prepared when a pod is deleted before its claim was prepared (11.22).
    spares_claims_in_use: bool = False


@functools.cache  # admission reads it many times
def profile(version: str = DEFAULT_VERSION) -> VersionProfile:
    """The profile of a minor version, of a patch release such as `1.34.6`, or of `legacy`."""
    if version == LEGACY:
        return _LEGACY_PROFILE
    number = _parse(version)
    since = _Since(number)
    return VersionProfile(
        name=version.removeprefix("v"),
        cleans_only_sockets=number[:2] >= (1, 33) or number == (1, 31, 0),
        endpoint_by_socket=since(1, 37),
        health_by_resource=since(1, 37),
        reads_plain_lists=not since(1, 31),
        refuses_unhealthy=since(1, 28) or since.backport((1, 26, 5), (1, 27, 2)),
        skips_running=since(1, 28) or since.backport((1, 26, 9), (1, 27, 6)),
        sees_every_running=since(1, 36) or since.backport((1, 34, 7), (1, 35, 4)),
        takes_cdi=since(1, 28),
        keeps_sidecars=since(1, 29),
        lists_sidecars=since(1, 30),
        lists_active_only=since(1, 34),
        crashes_on_dropped=since(1, 34),
        narrows_masks=since(1, 36),
        reports_device_health=since(1, 36),
        prepares_claims=since(1, 34),
        asks_announced_health=since(1, 37),
        health_entries=16384 if since(1, 37) else 0,
        spares_claims_in_use=since(1, 37),
    )


def nearest(version: str) -> str:
    """The version itself; for a version older or newer than all known versions, the nearest known minor version."""
    match = _VERSION.fullmatch(version)
    if not match:
        raise ConfigError(f"a version must be like {DEFAULT_VERSION} or 1.34.7, got {version!r}")
    number = (int(match[1]), int(match[2]))
    if _OLDEST <= number <= _NEWEST:
        return version
    return "{}.{}".format(*(_OLDEST if number < _OLDEST else _NEWEST))


def _parse(version: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(version)
    if not match:
        raise ConfigError(f"kubelet version must be like {DEFAULT_VERSION} or 1.34.7, or {LEGACY!r}, got {version!r}")
    number = (int(match[1]), int(match[2]), int(match[3] or _LAST_PATCH))
    if not _OLDEST <= number[:2] <= _NEWEST:
        raise ConfigError(f"kubelet version must be {SUPPORTED_VERSIONS}, or {LEGACY!r}, got {version}")
    return number


@dataclass(frozen=True, slots=True)
class _Since:
    number: tuple[int, int, int]

    def __call__(self, major: int, minor: int) -> bool:
        return self.number[:2] >= (major, minor)

    def backport(self, *fixes: tuple[int, int, int]) -> bool:
        """Whether the version is among these patch releases or a later patch of the same minor version."""
        return any(self.number[:2] == fix[:2] and self.number >= fix for fix in fixes)


# The behaviour of kubelets up to 1.24, which also accept plugins with only ListAndWatch and Allocate.
_LEGACY_PROFILE = VersionProfile(
    name=LEGACY,
    cleans_only_sockets=False,
    writes_deprecation=True,
    options_may_be_missing=True,
    reads_plain_lists=True,
    refuses_unhealthy=False,
    skips_running=False,
    sees_every_running=False,
    takes_cdi=False,
    keeps_sidecars=False,
    lists_sidecars=False,
    lists_active_only=False,
    crashes_on_dropped=False,
    narrows_masks=False,
    reports_device_health=False,
    prepares_claims=False,
)
