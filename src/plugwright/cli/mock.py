"""`plugwright mock`: make mock devices fail, recover, appear and disappear."""

from pathlib import Path

import click

from plugwright.cli.control import ask, control_socket, plugin_command
from plugwright.errors import ConfigError

__all__ = ["mock"]

_RESOURCE = click.option("--resource", default="", help="Resource of the device; found by the device id if left out.")


@click.group(epilog="Example:  plugwright mock fail mock-3-1f0e2d3c --reason 'fell off the bus'")
def mock() -> None:
    """Simulate failure, recovery and hot-plug with the mock devices of a running daemon."""


@mock.command(epilog="Example:  plugwright mock fail mock-3-1f0e2d3c --reason 'fan stopped'")
@click.argument("device_id", metavar="ID")
@click.option("--reason", default="", help="Reason, shown by `status`.")
@click.option("--code", default="mock", show_default=True, help="Code of the reason, as `xid-79`.")
@_RESOURCE
@control_socket
def fail(device_id: str, reason: str, code: str, resource: str, control_socket: Path) -> None:
    """Turn a device Unhealthy."""
    _command(control_socket, "fail", resource, {"id": device_id, "reason": reason, "code": code})


@mock.command(epilog="Example:  plugwright mock recover mock-3-1f0e2d3c")
@click.argument("device_id", metavar="ID")
@_RESOURCE
@control_socket
def recover(device_id: str, resource: str, control_socket: Path) -> None:
    """Turn a device Healthy again."""
    _command(control_socket, "recover", resource, {"id": device_id})


@mock.command(epilog="Example:  plugwright mock add --resource mock/gpu")
@click.argument("device_id", metavar="[ID]", default="")
@_RESOURCE
@control_socket
def add(device_id: str, resource: str, control_socket: Path) -> None:
    """Plug in a device; without ID it gets a new one."""
    _command(control_socket, "add", resource, {"id": device_id})


@mock.command(epilog="Example:  plugwright mock remove mock-3-1f0e2d3c")
@click.argument("device_id", metavar="ID")
@_RESOURCE
@control_socket
def remove(device_id: str, resource: str, control_socket: Path) -> None:
    """Unplug a device: it turns Unhealthy, and leaves the list when no pod can hold it any more."""
    _command(control_socket, "remove", resource, {"id": device_id})


def _command(path: Path, name: str, resource: str, arguments: dict[str, str]) -> None:
    resource = resource or _resource_of(path, arguments["id"], new=name == "add")
    plugin_command(path, name, resource, arguments)


def _resource_of(path: Path, device_id: str, new: bool) -> str:
    resources = ask(path, {"do": "status"})["resources"]
    names = [
        resource["name"]
        for resource in resources
        if new or any(device["id"] == device_id for device in resource["devices"])
    ]
    if not names:
        raise ConfigError(f"no resource has a device {device_id!r}" if resources else "no resources are served")
    if len(names) > 1:
        raise ConfigError(f"several resources are possible, choose one with --resource: {', '.join(names)}")
    return str(names[0])
