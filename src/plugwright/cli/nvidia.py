"""`plugwright nvidia`: clear a GPU's recorded faults, inject simulated ones, and remove CDI specs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from plugwright.cli.completing import complete_device_id
from plugwright.cli.control import ChosenDaemon, daemon_options, plugin_command
from plugwright.errors import ConfigError
from plugwright.fleet.device_names import NamedDevice, complete_device
from plugwright.model import some
from plugwright.plugins.nvidia.cdi import OWNER
from plugwright.plugins.nvidia.config import HOOK_DIRECTORY
from plugwright.plugins.nvidia.hooks import OWN_PROGRAM
from plugwright.sdk import cdi

__all__ = ["nvidia"]

_RESOURCE = click.option("--resource", default="", help="The resource of the GPU; by default found by the GPU.")


@click.group(epilog="Example:  plugwright nvidia recover GPU-8f3c2e4a-1b2c-5d6e-8f90-a1b2c3d4e5f6")
def nvidia() -> None:
    """The NVIDIA GPUs of a running daemon."""


@nvidia.command(epilog="Example:  plugwright nvidia recover 3")
@click.argument("gpu", metavar="GPU", shell_complete=complete_device_id)
@_RESOURCE
@daemon_options()
def recover(gpu: str, resource: str, daemon: ChosenDaemon) -> None:
    """Clear the recorded faults of a GPU.

    For a GPU that waits for an operator, or for a reset that could not be observed.

    GPU is an id as shown by `plugwright status`, a UUID, a prefix of either, or an index.
    """
    _command(daemon, "recover", resource, {"id": gpu})


@nvidia.command(epilog="Example:  plugwright nvidia simulate xid 3 xid=79")
@click.argument("what", metavar="WHAT")
@click.argument("words", metavar="[GPU] [KEY=VALUE]...", nargs=-1)
@_RESOURCE
@daemon_options()
def simulate(what: str, words: tuple[str, ...], resource: str, daemon: ChosenDaemon) -> None:
    """Inject a fault into a machine with `simulate`.

    \b
    xid GPU xid=79                  the driver reports an Xid
    sxid sxid=20034                 an NVSwitch has a fatal error
    lose GPU                        the GPU falls off the bus
    reset GPU                       the GPU is reset and healthy
    remove GPU, add GPU             the GPU is unplugged, plugged in
    ecc GPU count=2                 uncorrected memory errors
    remap GPU state=pending|failed  a row of memory to be remapped
    mig GPU profiles=3g.20gb,3g.20gb    new MIG devices; profiles=off disables MIG
    process GPU pid=4711 mib=3000   a process uses the GPU; mib=0 ends that
    deafen GPU                      its events cannot be registered
    events state=failing|back       no event of any GPU can be received
    fabric state=gone|back          the fabric manager of all GPUs ends, runs
    driver state=gone|back          the driver is unloaded, loaded
    """
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise click.UsageError("expected at most one GPU; other arguments must look like KEY=VALUE")
    arguments = dict(word.split("=", 1) for word in words if "=" in word)
    _command(daemon, what, resource, {"id": plain[0] if plain else "", **arguments})


@nvidia.command(epilog="Example:  plugwright nvidia clean --cdi-dir /var/run/cdi")
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path),
    default=str(cdi.DYNAMIC),
    show_default=True,
    help="The directory of the CDI specs.",
)
@click.option(
    "--programs-dir",
    type=click.Path(path_type=Path),
    default=HOOK_DIRECTORY,
    show_default=True,
    help="The directory of the program that their hooks call.",
)
def clean(cdi_dir: Path, programs_dir: Path) -> None:
    """Remove the CDI specs of an uninstalled daemon. Their hook program is removed too.

    Run it when no pod holds one of its GPUs any more.
    """
    for path in cdi.SpecDirectory(cdi_dir, OWNER).remove():
        click.echo(f"removed {path}")
    program = programs_dir / OWN_PROGRAM
    if program.exists():
        program.unlink()
        click.echo(f"removed {program}")


def _command(daemon: ChosenDaemon, name: str, resource: str, arguments: Mapping[str, str]) -> None:
    resources = daemon.ask({"do": "status"})["resources"]
    gpu = _completed(resources, arguments["id"])
    plugin_command(daemon, name, resource or _resource_of(resources, gpu), {**arguments, "id": gpu})


def _completed(resources: Sequence[Mapping[str, Any]], gpu: str) -> str:
    """The UUID or id that starts with `gpu`, unless `gpu` is complete or an index. Ids of shares start with UUIDs."""
    devices = _devices(resources)
    if not gpu or any(_is_named(device, gpu) for device in devices):
        return gpu
    uuids = {str(device["attributes"].get("gpu", "")) for device in devices}
    for names in (uuids, {str(device["id"]) for device in devices}):
        if found := complete_device(gpu, [NamedDevice("", name) for name in names]):
            return found[0].id
    return gpu


def _resource_of(resources: Sequence[Mapping[str, Any]], gpu: str) -> str:
    """Any resource that contains the GPU, because a fault affects all parts of a GPU."""
    owners = {
        device["attributes"]["gpu"]: resource["name"]
        for resource in reversed(resources)
        for device in resource["devices"]
        if "gpu" in device["attributes"] and (not gpu or _is_named(device, gpu))
    }
    if not owners:
        gpus = {str(device["attributes"]["gpu"]) for device in _devices(resources) if "gpu" in device["attributes"]}
        raise ConfigError(f"no resource has a GPU {gpu!r} (the GPUs of this node: {some(sorted(gpus))})")
    if len(owners) > 1 and gpu:
        raise ConfigError(f"several GPUs match, choose with --resource: {', '.join(sorted(set(owners.values())))}")
    return str(min(owners.values()))


def _devices(resources: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [device for resource in resources for device in resource["devices"]]


def _is_named(device: Mapping[str, Any], gpu: str) -> bool:
    attributes = device["attributes"]
    index = str(attributes.get("index"))
    return gpu in (device["id"], attributes.get("gpu"), index, index.split(":", maxsplit=1)[0])
