"""Plugins that call: the Registration service on kubelet.sock (1.25 to 1.38)."""

import os.path
from pathlib import Path

from plugwright.errors import InvalidValue, PeerRefused, PlugwrightError
from plugwright.kubelet.manager import DeviceManager
from plugwright.kubelet.metrics import Name
from plugwright.model import Resource
from plugwright.protocol.registration import API_VERSION, RegisterRequest

__all__ = ["Registrar", "is_resource_name"]


class Registrar:
    """Answers when the plugin was dialled back and told its options; its list comes later (1.31, 1.34)."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager
        self._context = manager.context

    async def register(self, request: RegisterRequest) -> None:
        resource = request.resource
        self._manager.metrics.count(Name.REGISTRATIONS, resource_name=resource)
        with self._context.trace.timing("Register", resource, (request.endpoint,)):
            _check(request)
            socket = self._socket(request)
            try:
                await self._manager.connections.connect(resource, socket)
            except PeerRefused:
                raise
            except PlugwrightError as error:  # such as a path that is too long to be dialled
                raise PeerRefused("UNKNOWN", f"failed to dial device plugin: {error}") from error
        self._context.tell("registered", resource, f"at {socket.name}")

    def _socket(self, request: RegisterRequest) -> Path:
        """Joined and cleaned, so that an absolute path lands below the directory, and `..` leaves it (1.29)."""
        directory = self._context.paths.device_plugins
        socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
        if socket.parent != directory:
            self._context.findings.report(
                "1.29",
                request.resource,
                f"endpoint {request.endpoint!r} is not in the plugin directory",
                "dials it all the same",
            )
        return socket


def is_resource_name(name: str) -> bool:
    try:
        Resource(name)
    except InvalidValue:
        return False
    return True


def _check(request: RegisterRequest) -> None:
    if request.version != API_VERSION:
        raise PeerRefused(
            "UNKNOWN",
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]',
        )
    if not is_resource_name(request.resource):
        raise PeerRefused("UNKNOWN", f'the ResourceName "{request.resource}" is invalid')
