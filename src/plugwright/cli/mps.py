"""`plugwright mps`: runs and shows the MPS control daemons of shared GPUs, outside the plugin."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from plugwright.cli import logs
from plugwright.cli.options import duration
from plugwright.cli.output import document_printed, output_option
from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.plugins.nvidia import family, selection
from plugwright.plugins.nvidia.config import NvidiaConfig, SharingStrategy
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.daemon import ProbeSettings
from plugwright.plugins.nvidia.mps.plan import MpsPaths
from plugwright.plugins.nvidia.mps.state import ResourceState
from plugwright.plugins.nvidia.mps.supervisor import MpsResource, run_supervisors

__all__ = ["mps"]

logger = logging.getLogger(__name__)

_DEFAULTS = ProbeSettings()
_CONFIG = click.option("-c", "--config", "path", type=click.Path(path_type=Path), show_default=True, show_envvar=True,
                       default="/etc/plugwright/plugwright.yaml", envvar="PLUGWRIGHT_CONFIG",
                       help="The file of `plugwright run`.")  # fmt: skip


def _option(flag: str, **settings: object) -> click.Option:
    """An option that can also be set by an environment variable: `--interval` is PLUGWRIGHT_MPS_INTERVAL."""
    variable = f"PLUGWRIGHT_MPS_{flag.removeprefix('--').upper()}"
    return click.Option([flag], envvar=variable, show_envvar=True, show_default=True, **settings)  # type: ignore[arg-type]


def _time(flag: str, seconds: float, text: str) -> click.Option:
    return _option(flag, type=duration, metavar="TIME", default=f"{seconds:g}s", help=text)


_PROBE_SETTINGS = [
    _time("--interval", _DEFAULTS.interval, "Time between two probes of a daemon."),
    _time("--timeout", _DEFAULTS.timeout, "Time for one answer of a daemon."),
    _option("--patience", type=click.IntRange(min=1), metavar="COUNT", default=_DEFAULTS.patience,
            help="Failed probes in a row before a daemon is restarted."),
    _time("--grace", _DEFAULTS.grace, "Time for a daemon to end before it is killed."),
    _option("--program", default=_DEFAULTS.program, help="NVIDIA's control program."),
    _option("--smi", default=_DEFAULTS.smi, help="Program that sets compute modes, if that is configured."),
]  # fmt: skip


@click.group(epilog="Example:  plugwright mps run -c plugwright.yaml")
def mps() -> None:
    """Run the MPS control daemons of GPUs shared by MPS."""


@mps.command("run", epilog="Example:  plugwright mps run -c plugwright.yaml --interval 5s")
@_CONFIG
@click.option("--resource", "only", multiple=True, help="Only this resource; may be given several times.")
@click.option("--log-format", type=click.Choice(logs.FORMATS), default="human", show_default=True, help="Log format.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="Log level.")
def run(path: Path, only: tuple[str, ...], log_format: str, log_level: str, **values: object) -> None:
    """Run the MPS control daemons of the node, until SIGTERM or SIGINT.

    Sets the limits in the daemons, probes and restarts them, and writes their state to files that `plugwright run`
    follows. The configuration is read once, because changing or stopping a daemon ends the CUDA programs of its
    tenants.
    """
    logs.configure(log_format, log_level)
    with logs.failure_in_log():
        resources = _mps_resources(schema.load(path), only)
        settings = replace(_DEFAULTS, **values)
        run_supervisors(resources, settings)
        logger.info("stopped")


run.params.extend(_PROBE_SETTINGS)


@mps.command(epilog="Example:  plugwright mps status -c plugwright.yaml")
@_CONFIG
@output_option()
@click.pass_context
def status(context: click.Context, path: Path, output: str) -> None:
    """Show the control daemons of this node. The exit code is 1 if a daemon does not work."""
    resources = _mps_resources(schema.load(path), ())
    states = [(resource.paths, state.read(resource.paths.state)) for resource in resources]
    if not document_printed({paths.resource: current for paths, current in states}, output):
        click.echo("\n".join(line for paths, current in states for line in _lines(paths, current)))
    context.exit(0 if all(_is_working(current, time.monotonic()) for _, current in states) else 1)


def _mps_resources(config: Config, only: Sequence[str]) -> list[MpsResource]:
    resources = []
    for entry in config.file.resources:
        settings = entry.settings
        if not isinstance(settings, NvidiaConfig) or (only and entry.name not in only):
            continue
        if settings.share is not None and settings.share.by is SharingStrategy.MPS:
            resources.append(
                MpsResource(
                    resource=entry.name,
                    share=settings.share,
                    driver=family.driver_for(settings),
                    selection=selection.from_config(settings),
                )
            )
    missing = sorted(set(only) - {resource.resource for resource in resources})
    if missing or not resources:
        raise ConfigError(f"{config.document.name}: no resource {' '.join([*missing[:1], ''])}is shared by MPS")
    return resources


def _lines(paths: MpsPaths, current: ResourceState | None) -> Iterator[str]:
    if current is None:
        yield f"{paths.resource}  no daemon: there is no {paths.state}"
        return
    if current.problem:
        yield f"{paths.resource}  no daemon: {current.problem}"
    for daemon in current.daemons:
        plan = daemon.plan
        reason = f": {daemon.reason}" if daemon.reason else ""
        outdated = "no supervisor, was " if time.monotonic() > current.valid_until else ""
        yield f"{paths.resource}  {outdated}{daemon.condition}{reason}"
        yield f"  {plan.size} of {plan.gpu}: {plan.percent} % and {plan.mebibytes} MiB for each process"
        yield f"  {paths.pipe(*plan.key)}, restarted {daemon.restarts} times, {len(daemon.servers)} servers"
    for uuid, mode in sorted(current.modes.items()):
        yield f"  compute mode of {uuid} will be restored to {mode}"


def _is_working(current: ResourceState | None, now: float) -> bool:
    if current is None:
        return False
    plans = [daemon.plan for daemon in current.daemons]
    gpus = {plan.gpu for plan in plans} or {""}
    return not any(state.unusable_reason(current, plans, gpu, now) for gpu in gpus)
