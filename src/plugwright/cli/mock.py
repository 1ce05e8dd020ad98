"""`plugwright mock`: make mock devices fail, recover, appear and disappear."""

import click

from plugwright.cli.completing import complete_device_id, complete_resource
from plugwright.cli.control import ChosenDaemon, daemon_options, plugin_command
from plugwright.errors import ConfigError
from plugwright.fleet.device_names import close_names, complete_device, devices_in_status
from plugwright.model import some

__all__ = ["mock"]

_RESOURCE = click.option(
    "--resource",
    default="",
    shell_complete=complete_resource,
    help="Resource of the device; by default found by the device's id.",
)


@click.group(epilog="Example:  plugwright mock fail mock-3 --reason 'fell off the bus'")
def mock() -> None:
    """Simulate failure, recovery and hot-plug with the mock devices of a running daemon.

    ID is a device's id, an id prefix, or its index. After `plugwright up` the daemon is found automatically.
    """


@mock.command(epilog="Example:  plugwright mock fail mock-3 --reason 'fan stopped'")
@click.argument("device_id", metavar="ID", shell_complete=complete_device_id)
@click.option("--reason", default="", help="Reason, shown by `status`.")
@click.option("--code", default="mock", show_default=True, help="Code of the reason, such as `xid-79`.")
@_RESOURCE
@daemon_options()
def fail(device_id: str, reason: str, code: str, resource: str, daemon: ChosenDaemon) -> None:
    """Make a device Unhealthy."""
    _command(daemon, "fail", resource, {"id": device_id, "reason": reason, "code": code})


@mock.command(epilog="Example:  plugwright mock recover mock-3")
@click.argument("device_id", metavar="ID", shell_complete=complete_device_id)
@_RESOURCE
@daemon_options()
def recover(device_id: str, resource: str, daemon: ChosenDaemon) -> None:
    """Make a device Healthy again."""
    _command(daemon, "recover", resource, {"id": device_id})


@mock.command(epilog="Example:  plugwright mock add --resource mock/gpu")
@click.argument("device_id", metavar="[ID]", default="")
@_RESOURCE
@daemon_options()
def add(device_id: str, resource: str, daemon: ChosenDaemon) -> None:
    """Plug in a device; without ID it gets a new one."""
    _command(daemon, "add", resource, {"id": device_id})


@mock.command(epilog="Example:  plugwright mock remove mock-3")
@click.argument("device_id", metavar="ID", shell_complete=complete_device_id)
@_RESOURCE
@daemon_options()
def remove(device_id: str, resource: str, daemon: ChosenDaemon) -> None:
    """Unplug a device. It becomes Unhealthy, and leaves the list when no pod can hold it any more."""
    _command(daemon, "remove", resource, {"id": device_id})


def _command(daemon: ChosenDaemon, name: str, resource: str, arguments: dict[str, str]) -> None:
    if name == "add":
        plugin_command(daemon, name, resource or _only_resource(daemon), arguments)
        return
    devices = devices_in_status(daemon.ask({"do": "status"}), resource)
    found = complete_device(arguments["id"], devices)
    if found:
        arguments = {**arguments, "id": found[0].id}
    elif not resource:
        ids = sorted(device.id for device in devices)
        hint = close_names(arguments["id"], ids) or f" (devices: {some(ids)})"
        raise ConfigError(
            f"no resource has a device {arguments['id']!r}{hint}" if devices else "no resources are served"
        )
    plugin_command(daemon, name, resource or _one_of({device.resource for device in found}), arguments)


def _only_resource(daemon: ChosenDaemon) -> str:
    names = {str(resource["name"]) for resource in daemon.ask({"do": "status"})["resources"]}
    if not names:
        raise ConfigError("no resources are served")
    return _one_of(names)


def _one_of(names: set[str]) -> str:
    if len(names) > 1:
        raise ConfigError(f"several resources are possible, choose one with --resource: {', '.join(sorted(names))}")
    return min(names)
