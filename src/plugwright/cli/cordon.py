"""`plugwright cordon` and `uncordon`: take one device out of service, and put it back."""

from pathlib import Path

import click

from plugwright.cli.control import ask, control_socket
from plugwright.text import clean

__all__ = ["cordon", "uncordon"]


@click.command(epilog="Example:  plugwright cordon nvidia.com/gpu GPU-1c2d --reason 'fan replaced on Monday'")
@click.argument("resource")
@click.argument("device_id", metavar="ID")
@click.option("--reason", required=True, help="Reason, shown by `status`.")
@control_socket
def cordon(resource: str, device_id: str, reason: str, control_socket: Path) -> None:
    """Take one device out of service: it turns Unhealthy with this reason, and stays so over restarts.

    Pods that hold it keep it; no new pod gets it.
    """
    request = {"do": "cordon", "resource": resource, "id": device_id, "reason": reason}
    click.echo(clean(ask(control_socket, request)))


@click.command(epilog="Example:  plugwright uncordon nvidia.com/gpu GPU-1c2d")
@click.argument("resource")
@click.argument("device_id", metavar="ID")
@control_socket
def uncordon(resource: str, device_id: str, control_socket: Path) -> None:
    """Put a cordoned device back into service, with its own health."""
    click.echo(clean(ask(control_socket, {"do": "uncordon", "resource": resource, "id": device_id})))
