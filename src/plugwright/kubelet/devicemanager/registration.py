"""Registration of device plugins, by both ways: the Registration service on kubelet.sock (1.25 to 1.38), and the
handler behind the plugin watcher.

What happens once a plugin is connected is `endpoints`.
"""

import os.path
from pathlib import Path

from plugwright.errors import InvalidValue, PeerRefused, PlugwrightError
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.metrics import MetricName
from plugwright.model import Resource
from plugwright.protocol.registration import API_VERSION, PluginInfo, RegisterRequest

__all__ = ["DevicePluginHandler", "RegistrationServer", "is_resource_name"]


class RegistrationServer:
    """Answers once the plugin is dialled and its options are known; its device list follows later (1.31, 1.34)."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager
        self._context = manager.context

    async def register(self, request: RegisterRequest) -> None:
        resource = request.resource
        self._manager.metrics.count(MetricName.REGISTRATIONS, resource_name=resource)
        with self._context.event_log.record_call("Register", resource, (request.endpoint,)):
            if self._context.settings.on_register is not None:
                await self._context.settings.on_register(request)
            _check(request)
            socket = self._socket(request)
            try:
                await self._manager.endpoints.connect(resource, socket)
            except PeerRefused:
                raise
            except PlugwrightError as error:  # such as a path that is too long to be dialled
                raise PeerRefused("UNKNOWN", f"failed to dial device plugin: {error}") from error
        self._context.record("registered", resource, f"at {socket.name}")

    def _socket(self, request: RegisterRequest) -> Path:
        # The endpoint is joined to the directory and cleaned: an absolute path lands below it, `..` leaves it (1.29).
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


def _check(request: RegisterRequest) -> None:
    if request.version != API_VERSION:
        raise PeerRefused(
            "UNKNOWN",
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]',
        )
    if not is_resource_name(request.resource):
        raise PeerRefused("UNKNOWN", f'the ResourceName "{request.resource}" is invalid')


def is_resource_name(name: str) -> bool:
    try:
        Resource(name)
    except InvalidValue:
        return False
    return True


class DevicePluginHandler:
    """Device plugins found by the plugin watcher."""

    def __init__(self, manager: DeviceManager) -> None:
        self._endpoints = manager.endpoints

    def validate(self, info: PluginInfo, endpoint: Path) -> str:
        if API_VERSION not in info.versions:
            versions = " ".join(info.versions)
            return f"manager version, {API_VERSION}, is not among plugin supported versions [{versions}]"
        if not is_resource_name(info.name):
            return f'invalid name of device plugin socket: the ResourceName "{info.name}" is invalid'
        return ""

    async def register(self, info: PluginInfo, endpoint: Path) -> None:
        await self._endpoints.connect(info.name, endpoint)

    def deregister(self, name: str, endpoint: Path) -> None:
        self._endpoints.disconnect(name, endpoint)
