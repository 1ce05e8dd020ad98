"""The DRAPlugin service: served by drivers, called by kubelets to prepare the claims of a pod.

v1 and v1beta1 differ in one field, `share_id`; both are served on one socket. A kubelet calls the first version in the
driver's own list that it knows.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from plugwright.protocol import transport
from plugwright.protocol.draplugin.v1 import draplugin_pb2 as v1
from plugwright.protocol.draplugin.v1beta1 import draplugin_pb2 as v1beta1
from plugwright.protocol.transport import Method, Unary

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
_MESSAGES: dict[str, ModuleType] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}
VERSIONS = tuple(_MESSAGES)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Which ResourceClaim is meant: all that a kubelet tells of it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that is ready for the containers of a claim.

    `requests` are the names of the claim's requests, never those of subrequests; none stands for all.
    """

    pool: str
    name: str
    requests: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    share_id: str = ""


class DRAPluginService(Protocol):
    """The driver's side. Results are by the uid of the claim; a text says why that claim failed."""

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]: ...

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        """An empty text: the claim's devices are given back."""
        ...


@dataclass(frozen=True, slots=True)
class _Methods:
    """Both methods in the messages of one version."""

    messages: Any
    prepare: Method[Any, Any]
    unprepare: Method[Any, Any]

    @classmethod
    def of(cls, version: str) -> "_Methods":
        pb: Any = _MESSAGES[version]
        service = "/" + pb.DESCRIPTOR.services_by_name[DRA_PLUGIN].full_name
        return cls(
            pb,
            Method(f"{service}/NodePrepareResources", pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse),
            Method(
                f"{service}/NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse
            ),
        )

    def claims(self, claims: Iterable[Claim]) -> list[Any]:
        return [self.messages.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]

    def prepared(self, result: Sequence[PreparedDevice] | str) -> Any:
        if isinstance(result, str):
            return self.messages.NodePrepareResourceResponse(error=result)
        return self.messages.NodePrepareResourceResponse(devices=map(self._device, result))

    def _device(self, device: PreparedDevice) -> Any:
        share = {"share_id": device.share_id} if device.share_id and self.messages is v1 else {}
        return self.messages.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.name,
            cdi_device_ids=device.cdi_devices,
            **share,
        )


def methods(service: DRAPluginService, versions: Iterable[str] = VERSIONS) -> list[transport.Bound]:
    """The service's methods in each version, to be served beside others on one socket."""
    return [bound for version in versions for bound in _bound(service, _Methods.of(version))]


def _bound(service: DRAPluginService, wire: _Methods) -> list[transport.Bound]:
    async def prepare(request: Any) -> Any:
        results = await service.prepare([_claim(claim) for claim in request.claims])
        return wire.prepare.reply(claims={uid: wire.prepared(result) for uid, result in results.items()})

    async def unprepare(request: Any) -> Any:
        results = await service.unprepare([_claim(claim) for claim in request.claims])
        ended = {uid: wire.messages.NodeUnprepareResourceResponse(error=error) for uid, error in results.items()}
        return wire.unprepare.reply(claims=ended)

    return [Unary(wire.prepare, prepare), Unary(wire.unprepare, unprepare)]


class DRAPluginClient:
    """Calls one driver, as a kubelet does."""

    def __init__(self, connection: transport.Connection, version: str) -> None:
        self._connection = connection
        self._wire = _Methods.of(version)

    async def prepare(
        self, claims: Iterable[Claim], timeout: float | None = None
    ) -> dict[str, list[PreparedDevice] | str]:
        request = self._wire.prepare.request(claims=self._wire.claims(claims))
        reply = await self._connection.call(self._wire.prepare, request, timeout)
        return {
            uid: entry.error or [_device(device) for device in entry.devices] for uid, entry in reply.claims.items()
        }

    async def unprepare(self, claims: Iterable[Claim], timeout: float | None = None) -> dict[str, str]:
        request = self._wire.unprepare.request(claims=self._wire.claims(claims))
        reply = await self._connection.call(self._wire.unprepare, request, timeout)
        return {uid: entry.error for uid, entry in reply.claims.items()}


@asynccontextmanager
async def connect(socket: Path, version: str = VERSIONS[0]) -> AsyncIterator[DRAPluginClient]:
    async with transport.connect(socket, transport.MESSAGE_LIMIT) as connection:
        yield DRAPluginClient(connection, version)


def _claim(message: Any) -> Claim:
    return Claim(message.namespace, message.name, message.uid)


def _device(message: Any) -> PreparedDevice:
    return PreparedDevice(
        message.pool_name,
        message.device_name,
        tuple(message.request_names),
        tuple(message.cdi_device_ids),
        getattr(message, "share_id", ""),
    )
