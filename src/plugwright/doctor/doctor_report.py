"""The DoctorReport: the result of every check on one node, as a versioned document.

Within a version, keys can be added but never change their meaning; docs/doctor.md describes them.
"""

from datetime import datetime
from typing import Literal

import msgspec

from plugwright.text import clean

__all__ = ["DoctorCheck", "DoctorMetadata", "DoctorReport", "found", "healthy", "not_checked"]

_LONGEST = 600  # characters of one text


class _DoctorPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts of a report."""


class DoctorCheck(_DoctorPart, frozen=True, kw_only=True):
    """`found` is the observation. `why` and `fix` are set for a finding; for `unknown`, `why` is the obstacle."""

    name: str
    state: Literal["ok", "finding", "unknown"]
    found: str = ""
    why: str = ""
    fix: str = ""


class DoctorMetadata(_DoctorPart, frozen=True, kw_only=True):
    node_name: str = ""  # empty if unknown
    version: str  # of the program that checked
    root: str  # directory examined as the root of the node
    in_pod: bool  # only the directories mounted in a pod were visible
    generated_at: datetime


class DoctorReport(_DoctorPart, frozen=True, kw_only=True):
    """`result` is `healthy` if no check found a problem and at least one was possible, else `findings` or `unknown`."""

    api_version: Literal["plugwright.dev/v1alpha1"] = "plugwright.dev/v1alpha1"
    kind: Literal["DoctorReport"] = "DoctorReport"
    metadata: DoctorMetadata
    result: Literal["healthy", "findings", "unknown"]
    checks: tuple[DoctorCheck, ...] = ()


def healthy(name: str, saw: str) -> DoctorCheck:
    return DoctorCheck(name=name, state="ok", found=clean(saw, _LONGEST))


def found(name: str, saw: str, why: str, fix: str) -> DoctorCheck:
    return DoctorCheck(
        name=name, state="finding", found=clean(saw, _LONGEST), why=clean(why, _LONGEST), fix=clean(fix, _LONGEST)
    )


def not_checked(name: str, why: object) -> DoctorCheck:
    return DoctorCheck(name=name, state="unknown", why=clean(why, _LONGEST))
