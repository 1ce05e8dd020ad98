"""Readers of the claims prepared on this node, and of the pods that the kubelet lists.

The files of claims are read whatever the present configuration is: the checkpoints of our DRA drivers, the CDI specs of
claims, and `dra_manager_state`, which only a daemon outside of a container can read. No module of `dra` is loaded.
"""

import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from plugwright.errors import PeerRefused, PlugwrightError
from plugwright.protocol import pod_resources
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import PodResources
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import ClaimRecord
from plugwright.system import files
from plugwright.system.concurrency import Backoff

__all__ = [
    "CDI_OWNER",
    "ClaimFilesRead",
    "UnnamedHolders",
    "claims_in",
    "followed_pods",
    "listed_pods",
    "pods_by_device",
    "read_claim_files",
]

CDI_OWNER = "plugwright-dra"  # in the names of the CDI specs of claims
_CHECKPOINT = "checkpoint.json"
_STATE = "dra_manager_state"
_MOST_GETS = 8  # the kubelet allows ten concurrent requests for all its clients (6.2)
_KIND = "/claim"  # the end of the kind of a claim's CDI spec
_LONGEST_PAUSE = 600.0  # seconds between two Lists for the same unnamed holders


class ClaimFilesRead(msgspec.Struct, frozen=True):
    """The claims found in files.

    `drivers` are those with a readable checkpoint. `are_complete` if no claim of the requested drivers can be missing.
    `may_exist` is False if neither a driver of ours nor pod-resources has ever been on this node. `problems` are
    existing files that cannot be read.
    """

    claims: tuple[ClaimRecord, ...] = ()
    drivers: frozenset[str] = frozenset()
    are_complete: bool = False
    may_exist: bool = True
    problems: Mapping[HoldingSource, str] = {}


def read_claim_files(paths: KubeletPaths, cdi: Iterable[Path], drivers: Collection[str]) -> ClaimFilesRead:
    """Reads all files of claims; `drivers` are those whose claims matter. Blocks; never raises because of a file."""
    problems: dict[HoldingSource, str] = {}
    claims: list[ClaimRecord] = []
    readable = set()
    for directory in _subdirectories(paths.plugins):
        try:
            claims += _prepared(directory.name, directory / _CHECKPOINT)
            readable.add(directory.name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            if directory.name in drivers:  # other drivers have their own files
                problems[HoldingSource.PREPARED_CLAIMS] = f"{directory / _CHECKPOINT}: {error}"
    is_complete = bool(drivers) and readable.issuperset(drivers)
    try:
        claims += _in_manager_state(paths.root / _STATE)
        is_complete = True
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problems[HoldingSource.DRA_MANAGER_STATE] = f"{paths.root / _STATE}: {error}"
    for directory in cdi:
        claims += _in_cdi_specs(directory)
    may_exist = paths.pod_resources_socket.parent.is_dir() or any((paths.plugins / name).is_dir() for name in drivers)
    return ClaimFilesRead(_distinct(claims), frozenset(readable), is_complete, may_exist, problems)


def pods_by_device(pods: Iterable[PodResources]) -> dict[Name, tuple[str, str]]:
    """By device, the namespace and name of the pod that holds it through the device plugin API."""
    return {
        (device.resource, device.device_id): (pod.namespace, pod.name)
        for pod in pods
        for container in pod.containers
        for device in container.devices
    }


async def listed_pods(socket: Path, limit: float) -> list[PodResources]:
    """All active pods. OSError or PlugwrightError."""
    async with pod_resources.connect(socket) as kubelet:
        return await kubelet.pods(limit)


async def followed_pods(
    socket: Path, pods: Collection[tuple[str, str]], limit: float
) -> dict[Name, tuple[str, str]] | None:
    """By device, those pods that have not ended; None if the kubelet has no `Get`, or there are too many pods."""
    if len(pods) > _MOST_GETS:
        return None
    found: dict[Name, tuple[str, str]] = {}
    try:
        async with pod_resources.connect(socket) as kubelet:
            for namespace, name in sorted(pods):
                try:
                    found |= pods_by_device([await kubelet.pod(name, namespace, limit)])
                except PeerRefused as error:
                    if "not found" not in str(error):
                        return None  # before 1.34 it has to be enabled
    except (OSError, PlugwrightError):
        return None
    return found


class UnnamedHolders:
    """Decides when a List is worth its risk (3.58): for held devices without a pod, at a bounded rate.

    They can belong to an ended pod, to an init container, which List does not contain (6.6), or to a pod that a kubelet
    does not list yet because it has just started. `interval` is the first pause, in seconds.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._names: frozenset[Name] = frozenset()
        self._pauses, self._clock = Backoff(interval, max(interval, _LONGEST_PAUSE)), clock
        self._due = 0.0

    def is_due(self, unnamed: frozenset[Name]) -> bool:
        """Whether List could explain one of these devices."""
        return bool(unnamed - self._names) or (bool(unnamed) and self._clock() >= self._due)

    def take(self, unnamed: frozenset[Name]) -> None:
        """Takes the devices that List has left without a pod."""
        if unnamed - self._names:
            self._pauses.reset()
        self._names = unnamed
        self._due = self._clock() + self._pauses.delay()


def claims_in(pods: Iterable[PodResources]) -> Iterator[ClaimRecord]:
    """The devices of claims that pods use."""
    for pod in pods:
        for used in {claim for container in pod.containers for claim in container.claims}:
            for device in used.devices:
                yield ClaimRecord(
                    device.driver,
                    device.name,
                    namespace=used.claim_namespace,
                    claim=used.claim_name,
                    pod=pod.name,
                    share_id=device.share_id,
                    source=HoldingSource.POD_RESOURCES,
                )


def _prepared(driver: str, path: Path) -> list[ClaimRecord]:
    header, content = files.read(path).splitlines()[:2]
    if zlib.crc32(content) != json.loads(header)["crc32"]:
        raise ValueError("its checksum is wrong")
    return [
        ClaimRecord(
            driver,
            str(device["name"]),
            str(device["id"]),
            namespace=str(claim["namespace"]),
            claim=str(claim["name"]),
            uid=str(claim["uid"]),
            share_id=str(device.get("share_id") or ""),
            admin_access=bool(device.get("admin_access")),
        )
        for claim in json.loads(content)["claims"]
        for device in claim["devices"]
    ]


def _in_manager_state(path: Path) -> list[ClaimRecord]:
    document = json.loads(files.read(path))
    data = document["Data"]
    if zlib.crc32(data.encode()) != document["Checksum"]:
        raise ValueError("its checksum is wrong")
    return [
        ClaimRecord(
            driver,
            str(device["DeviceName"]),
            namespace=str(claim["Namespace"]),
            claim=str(claim["ClaimName"]),
            uid=str(claim["ClaimUID"]),
            share_id=str(device.get("ShareID") or ""),
            source=HoldingSource.DRA_MANAGER_STATE,
        )
        for claim in json.loads(data)["ClaimInfoStateList"] or ()
        for driver, state in (claim["DriverState"] or {}).items()
        for device in state["Devices"] or ()
    ]


def _in_cdi_specs(directory: Path) -> Iterator[ClaimRecord]:
    """The claims in CDI specs, in which each device is named `<uid of the claim>-<device>`."""
    for path in sorted(directory.glob(f"*_{CDI_OWNER}.*.json")):
        uid = path.name.removesuffix(".json").rpartition(".")[2]
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            spec: dict[str, Any] = json.loads(files.read(path))
            driver = str(spec["kind"]).removesuffix(_KIND)
            for device in spec["devices"]:
                name = str(device["name"])
                if name.startswith(f"{uid}-"):
                    key, names = name.removeprefix(f"{uid}-"), _names(device.get("containerEdits"))
                    yield ClaimRecord(driver, key, uid=uid, source=HoldingSource.CDI, names=names)


def _names(edits: Any) -> tuple[str, ...]:
    """What may be a name of the hardware that a container gets."""
    try:
        nodes = [str(node.get("hostPath") or node["path"]) for node in edits.get("deviceNodes") or ()]
        values = [str(variable).partition("=")[2] for variable in edits.get("env") or ()]
    except (KeyError, TypeError, AttributeError):
        return ()
    return (*nodes, *(name for value in values for name in value.split(",") if name))


def _distinct(claims: Iterable[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """Each claim with its devices once, from the first source, which contains the most fields, with its CDI names."""
    found: dict[tuple[str, str, str], ClaimRecord] = {}
    for claim in claims:
        known = found.setdefault((claim.driver, claim.device, claim.uid), claim)
        if claim.names and not known.names:
            found[claim.driver, claim.device, claim.uid] = replace(known, names=claim.names)
    return tuple(found.values())


def _subdirectories(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError:
        return []
