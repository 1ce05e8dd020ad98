"""`plugwright nvidia`: forgive a GPU what has happened to it, rehearse what can, and clean up."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from plugwright.cli.control import ask, control_socket
from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.cdi import OWNER
from plugwright.sdk import cdi

__all__ = ["nvidia"]

_RESOURCE = click.option("--resource", default="", help="Whose GPU; found by the id where it is not given.")


@click.group(epilog="Example:  plugwright nvidia recover GPU-8f3c2e4a-1b2c-5d6e-8f90-a1b2c3d4e5f6")
def nvidia() -> None:
    """The NVIDIA GPUs of a running daemon."""


@nvidia.command(epilog="Example:  plugwright nvidia recover 3")
@click.argument("gpu", metavar="GPU")
@_RESOURCE
@control_socket
def recover(gpu: str, resource: str, control_socket: Path) -> None:
    """Forgets what has happened to a GPU: for one that waits for a reset which nobody could see, or for you.

    GPU is an id as `plugwright status` shows it, a UUID or an index.
    """
    _command(control_socket, "recover", resource, {"id": gpu})


@nvidia.command(epilog="Example:  plugwright nvidia simulate xid 3 xid=79")
@click.argument("what", metavar="WHAT")
@click.argument("words", metavar="[GPU] [KEY=VALUE]...", nargs=-1)
@_RESOURCE
@control_socket
def simulate(what: str, words: tuple[str, ...], resource: str, control_socket: Path) -> None:
    """Makes something happen on a machine with `simulate`.

    \b
    xid GPU xid=79                  the driver reports an Xid
    lose GPU                        it falls off the bus
    reset GPU                       it is reset, and well
    remove GPU, add GPU             pulled out, plugged in
    ecc GPU count=2                 uncorrected memory errors
    remap GPU state=pending|failed  a row of memory to be replaced
    mig GPU profiles=3g.20gb,3g.20gb    cut anew; profiles=off ends MIG
    deafen GPU                      its events cannot be registered
    driver state=gone|back          unloaded and loaded
    """
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise click.UsageError("one GPU at a time; the rest looks like KEY=VALUE")
    arguments = dict(word.split("=", 1) for word in words if "=" in word)
    _command(control_socket, what, resource, {"id": plain[0] if plain else "", **arguments})


@nvidia.command(epilog="Example:  plugwright nvidia clean --cdi-dir /var/run/cdi")
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path),
    default=str(cdi.DYNAMIC),
    show_default=True,
    help="Where the CDI specs are.",
)
def clean(cdi_dir: Path) -> None:
    """Removes the CDI specs that a daemon left: once it is uninstalled and no pod holds a GPU of it any more."""
    for path in cdi.SpecDirectory(cdi_dir, OWNER).remove():
        click.echo(f"removed {path}")


def _command(path: Path, name: str, resource: str, arguments: Mapping[str, str]) -> None:
    resource = resource or _resource_of(path, arguments["id"])
    request = {"do": "plugin", "resource": resource, "name": name, "arguments": arguments}
    click.echo(ask(path, request))


def _resource_of(path: Path, gpu: str) -> str:
    """Any that has the GPU: what happens to it happens to all of its parts."""
    resources = ask(path, {"do": "status"})["resources"]
    owners = {
        device["attributes"]["gpu"]: each["name"]
        for each in reversed(resources)
        for device in each["devices"]
        if _is_gpu(device) and (not gpu or _is(device, gpu))
    }
    if not owners:
        raise ConfigError(f"no resource has a GPU {gpu!r}")
    if len(owners) > 1 and gpu:
        raise ConfigError(f"say which with --resource: {', '.join(sorted(set(owners.values())))}")
    return str(min(owners.values()))


def _is_gpu(device: Mapping[str, Any]) -> bool:
    return "gpu" in device["attributes"]


def _is(device: Mapping[str, Any], gpu: str) -> bool:
    known = device["attributes"]
    return gpu in (device["id"], known.get("gpu"), str(known.get("index")), str(known.get("index")).split(":")[0])
