"""The DRAPlugin service: served by drivers, called by kubelets to prepare the claims of a pod.

v1 and v1beta1 differ in one field, `share_id`; both are served on one socket. A kubelet calls the first supported
version in the driver's list.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from plugwright.protocol import transport, wire_format
from plugwright.protocol.transport import Unary
from plugwright.protocol.wire_format import Fields, write, write_text

__all__ = [
    "DRA_PLUGIN",
    "VERSIONS",
    "Claim",
    "DRAPluginClient",
    "DRAPluginService",
    "PreparedDevice",
    "connect",
    "methods",
]

DRA_PLUGIN = "DRAPlugin"  # the type of plugin in plugins_registry
VERSIONS = (_V1, _V1BETA1) = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_KEY, _VALUE = 1, 2  # of an entry of a map


class Claim(msgspec.Struct, frozen=True, order=True):
    """The reference to a ResourceClaim: all a kubelet sends of it."""

    namespace: str
    name: str
    uid: str


class PreparedDevice(msgspec.Struct, frozen=True):
    """A prepared device for the containers of a claim.

    `requests` are the names of the claim's requests, never those of subrequests; empty means all requests.
    """

    pool: str
    name: str
    requests: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    share_id: str = ""


class DRAPluginService(Protocol):
    """The driver's side. Results are by the uid of the claim; a string is the reason for the failure of the claim."""

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]: ...

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        """An empty string: the claim's devices are released."""
        ...


def methods(service: DRAPluginService, versions: Iterable[str] = VERSIONS) -> list[transport.Bound]:
    """The service's methods in each version, to be served beside others on one socket."""

    async def prepare(has_shares: bool, message: bytes) -> bytes:
        results = await service.prepare(_decode_claims(message))
        return _encode_map({uid: _encode_prepared(result, has_shares) for uid, result in results.items()})

    async def unprepare(message: bytes) -> bytes:
        results = await service.unprepare(_decode_claims(message))
        return _encode_map({uid: write_text(1, error) for uid, error in results.items()})

    return [
        bound
        for version in versions
        for bound in (
            Unary(_path(version, "NodePrepareResources"), partial(prepare, version == _V1)),
            Unary(_path(version, "NodeUnprepareResources"), unprepare),
        )
    ]


class DRAPluginClient:
    """Calls one driver, as a kubelet does."""

    def __init__(self, connection: transport.Connection, version: str) -> None:
        self._connection = connection
        self._version = version

    async def prepare(
        self, claims: Iterable[Claim], timeout: float | None = None
    ) -> dict[str, list[PreparedDevice] | str]:
        path = _path(self._version, "NodePrepareResources")
        results = await self._connection.call(path, _encode_claims(claims), _decode_map, timeout)
        return {uid: wire_format.text(result, 2) or _decode_devices(result) for uid, result in results.items()}

    async def unprepare(self, claims: Iterable[Claim], timeout: float | None = None) -> dict[str, str]:
        path = _path(self._version, "NodeUnprepareResources")
        results = await self._connection.call(path, _encode_claims(claims), _decode_map, timeout)
        return {uid: wire_format.text(result, 1) for uid, result in results.items()}


@asynccontextmanager
async def connect(socket: Path, version: str = _V1) -> AsyncIterator[DRAPluginClient]:
    async with transport.connect(socket, transport.MESSAGE_LIMIT) as connection:
        yield DRAPluginClient(connection, version)


def _path(version: str, method: str) -> str:
    return f"/k8s.io.kubelet.pkg.apis.dra.{version}/{method}"


def _encode_claims(claims: Iterable[Claim]) -> bytes:
    return b"".join(
        write(1, write_text(1, claim.namespace) + write_text(2, claim.uid) + write_text(3, claim.name))
        for claim in claims
    )


def _decode_claims(message: bytes) -> list[Claim]:
    return [
        Claim(wire_format.text(claim, 1), wire_format.text(claim, 3), wire_format.text(claim, 2))
        for claim in wire_format.messages(wire_format.read(message), 1)
    ]


def _encode_map(entries: Mapping[str, bytes]) -> bytes:
    return b"".join(write(1, write(_KEY, uid.encode()) + write(_VALUE, entry)) for uid, entry in entries.items())


def _decode_map(message: bytes) -> dict[str, Fields]:
    entries = wire_format.messages(wire_format.read(message), 1)
    return {wire_format.text(entry, _KEY): wire_format.message(entry, _VALUE) or {} for entry in entries}


def _encode_prepared(result: Sequence[PreparedDevice] | str, has_shares: bool) -> bytes:
    if isinstance(result, str):
        return write_text(2, result)
    return b"".join(write(1, _encode_device(device, has_shares)) for device in result)


def _encode_device(device: PreparedDevice, has_shares: bool) -> bytes:
    return b"".join(
        (
            *(write(1, request.encode()) for request in device.requests),
            write_text(2, device.pool),
            write_text(3, device.name),
            *(write(4, cdi_device.encode()) for cdi_device in device.cdi_devices),
            write_text(5, device.share_id) if has_shares else b"",
        )
    )


def _decode_devices(result: Fields) -> list[PreparedDevice]:
    return [
        PreparedDevice(
            wire_format.text(device, 2),
            wire_format.text(device, 3),
            tuple(wire_format.texts(device, 1)),
            tuple(wire_format.texts(device, 4)),
            wire_format.text(device, 5),
        )
        for device in wire_format.messages(result, 1)
    ]
