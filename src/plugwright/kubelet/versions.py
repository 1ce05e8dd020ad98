"""What differs from one kubelet version to the next, as data.

The numbers in comments are those of the facts each line stands for. `1.36` is the version that is described in
full; of 1.37 only its endpoints are known to differ.
"""

import functools
import re
from dataclasses import dataclass

from plugwright.errors import ConfigError

__all__ = ["DEFAULT_VERSION", "LEGACY", "Profile", "profile"]

DEFAULT_VERSION = "1.36"
LEGACY = "legacy"
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_OLDEST, _NEWEST = (1, 26), (1, 37)
_LAST_PATCH = 10**6  # "1.34" is the newest 1.34 there is


@dataclass(frozen=True, slots=True)
class Profile:
    """One version's ways. Every default is that of 1.36."""

    name: str = DEFAULT_VERSION
    cleans_only_sockets: bool = True  # 1.18
    writes_deprecation: bool = False  # 1.19
    options_may_be_missing: bool = False  # 1.33: the first plugins had no such method
    endpoint_by_socket: bool = False  # 1.37 on: a second registration on a connected socket is refused
    reads_plain_lists: bool = False  # 4.11
    refuses_unhealthy: bool = True  # 3.16, 3.17
    skips_running: bool = True  # 3.14
    sees_every_running: bool = True  # 3.14: not only one container of the name
    takes_cdi: bool = True  # 3.56
    keeps_sidecars: bool = True  # 3.33
    lists_sidecars: bool = True  # 6.6
    lists_active_only: bool = True  # 6.4
    crashes_on_dropped: bool = True  # 2.25
    narrows_masks: bool = True  # 5.6
    reports_device_health: bool = True  # 7.1


@functools.cache  # asked for many times in every admission
def profile(version: str = DEFAULT_VERSION) -> Profile:
    """The profile of `1.26` to `1.37`, of a patch release such as `1.34.6`, or `legacy`."""
    if version == LEGACY:
        return _LEGACY_PROFILE
    number = _number(version)
    since = _Since(number)
    return Profile(
        name=version.removeprefix("v"),
        cleans_only_sockets=number[:2] >= (1, 33) or number == (1, 31, 0),
        endpoint_by_socket=since(1, 37),
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
    )


@dataclass(frozen=True, slots=True)
class _Since:
    number: tuple[int, int, int]

    def __call__(self, major: int, minor: int) -> bool:
        return self.number[:2] >= (major, minor)

    def backport(self, *fixes: tuple[int, int, int]) -> bool:
        """Whether it is a later patch of one of these."""
        return any(self.number[:2] == fix[:2] and self.number >= fix for fix in fixes)


# What kubelets did up to 1.24, with the timeout of 1.8's for plugins that know only ListAndWatch and Allocate.
_LEGACY_PROFILE = Profile(
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
)


def _number(version: str) -> tuple[int, int, int]:
    found = _VERSION.fullmatch(version)
    if not found:
        raise ConfigError(
            f"a kubelet's version looks like {DEFAULT_VERSION} or 1.34.7, or is {LEGACY!r}, not {version!r}"
        )
    number = (int(found[1]), int(found[2]), int(found[3] or _LAST_PATCH))
    if not _OLDEST <= number[:2] <= _NEWEST:
        raise ConfigError(f"kubelets from 1.26 to 1.37 are known, and {LEGACY!r}; not {version}")
    return number
