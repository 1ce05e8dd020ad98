"""`plugwright mps`: looks after the MPS control daemons of shared GPUs, outside the plugin."""

import asyncio
import json
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from plugwright.cli import logs
from plugwright.config import nvidia_build, schema
from plugwright.config.nvidia import NvidiaEntry
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.choices import By
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.daemon import Habits
from plugwright.plugins.nvidia.mps.plan import Place
from plugwright.plugins.nvidia.mps.state import ResourceState
from plugwright.plugins.nvidia.mps.supervisor import Wanted, look_after

__all__ = ["mps"]

logger = logging.getLogger(__name__)

_DEFAULTS = Habits()
_CONFIG = click.option("-c", "--config", "path", type=click.Path(path_type=Path), show_default=True, show_envvar=True,
                       default="/etc/plugwright/plugwright.yaml", envvar="PLUGWRIGHT_CONFIG",
                       help="The file of `plugwright run`.")  # fmt: skip


def _option(flag: str, **settings: object) -> click.Option:
    """`--interval` is PLUGWRIGHT_MPS_INTERVAL too."""
    variable = "PLUGWRIGHT_MPS_" + flag.removeprefix("--").replace("-", "_").upper()
    return click.Option([flag], envvar=variable, show_envvar=True, show_default=True, **settings)  # type: ignore[arg-type]


_SECONDS = click.FloatRange(min=0, min_open=True)
_HABITS = [
    _option("--interval", type=_SECONDS, default=_DEFAULTS.interval, help="Seconds between two probes of a daemon."),
    _option("--timeout", type=_SECONDS, default=_DEFAULTS.timeout, help="Seconds for one answer of a daemon."),
    _option("--patience", type=click.IntRange(min=1), default=_DEFAULTS.patience,
            help="Probes in a row that a daemon may miss before it is restarted."),
    _option("--grace", type=_SECONDS, default=_DEFAULTS.grace, help="Seconds for a daemon's end, then it is killed."),
    _option("--program", default=_DEFAULTS.program, help="NVIDIA's program."),
    _option("--smi", default=_DEFAULTS.smi, help="The program that sets compute modes, where that is asked for."),
]  # fmt: skip


@click.group(epilog="Example:  plugwright mps run -c plugwright.yaml")
def mps() -> None:
    """Look after the MPS control daemons of GPUs that are shared by MPS."""


@mps.command("run", epilog="Example:  plugwright mps run -c plugwright.yaml --interval 5")
@_CONFIG
@click.option("--resource", "only", multiple=True, help="Only this one; may be given several times.")
@click.option("--log-format", type=click.Choice(logs.FORMATS), default="human", show_default=True)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
def run(path: Path, only: tuple[str, ...], log_format: str, log_level: str, **values: object) -> None:
    """Start a control daemon for each resource that is shared by MPS, until SIGTERM or SIGINT.

    Limits are set in the daemons, which are probed and restarted; how they are is said in files that `plugwright run`
    follows. The file is read once: to change or stop a daemon ends the CUDA programs of its tenants.
    """
    logs.configure(log_format, log_level)
    wanted = _wanted(schema.load(path), only)
    habits = replace(_DEFAULTS, **values)  # type: ignore[arg-type]
    asyncio.run(_run(wanted, habits))
    logger.info("stopped")


run.params.extend(_HABITS)


@mps.command(epilog="Example:  plugwright mps status -c plugwright.yaml")
@_CONFIG
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def status(context: click.Context, path: Path, output: str) -> None:
    """Show the control daemons of this node. The exit code is 1 when one does not work."""
    wanted = _wanted(schema.load(path), ())
    found = [(each.place, state.read(each.place.state)) for each in wanted]
    if output == "json":
        shown = {place.resource: asdict(each) if each else None for place, each in found}
        click.echo(json.dumps(shown, indent=2, default=list))
    else:
        click.echo("\n".join(line for place, each in found for line in _lines(place, each)))
    now = time.monotonic()
    working = [each is not None and all(not _why(each, gpu, now) for gpu in _gpus(each)) for _, each in found]
    context.exit(0 if all(working) else 1)


def _wanted(loaded: Config, only: Sequence[str]) -> list[Wanted]:
    found = []
    for entry in loaded.file.resources:
        gpus = entry.settings if isinstance(entry.settings, NvidiaEntry) else None
        if gpus is None or gpus.share is None or gpus.share.by is not By.MPS or (only and entry.name not in only):
            continue
        options = nvidia_build.options_of(gpus)
        assert options.share is not None
        found.append(
            Wanted(
                resource=entry.name,
                share=options.share,
                options=nvidia_build.mps_options(gpus.share),
                driver=nvidia_build.driver_of(gpus),
                selection=options.selection,
            )
        )
    missing = sorted(set(only) - {each.resource for each in found})
    if missing or not found:
        raise ConfigError(f"{loaded.document.name}: no resource {' '.join([*missing[:1], ''])}is shared by MPS")
    return found


async def _run(wanted: Sequence[Wanted], habits: Habits) -> None:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        """Once: a second signal must not keep us from putting compute modes back."""
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        async with asyncio.TaskGroup() as group:
            for each in wanted:
                own = replace(habits, clients=each.options.clients)
                group.create_task(look_after(each, own), name=f"MPS of {each.resource}")
    except asyncio.CancelledError:
        return
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _lines(place: Place, found: ResourceState | None) -> Iterator[str]:
    if found is None:
        yield f"{place.resource}  no daemon: there is no {place.state}"
        return
    if found.problem:
        yield f"{place.resource}  no daemon: {found.problem}"
    for daemon in found.daemons:
        memory = ", ".join(f"{mebibytes} MiB of {uuid}" for uuid, mebibytes in daemon.plan.memory)
        why = f": {daemon.reason}" if daemon.reason else ""
        old = time.monotonic() > found.beat + found.lasting
        yield f"{place.resource}  {'nobody looks after it, was ' if old else ''}{daemon.condition}{why}"
        yield f"  {daemon.plan.size} of a GPU: {daemon.plan.percent} % and {memory} for each process"
        yield f"  {place.pipe(daemon.plan.size)}, restarted {daemon.restarts} times, {len(daemon.servers)} servers"
    for uuid, mode in sorted(found.modes.items()):
        yield f"  compute mode of {uuid} will be {mode} again"


def _gpus(found: ResourceState) -> list[str]:
    return sorted({uuid for daemon in found.daemons for uuid in daemon.plan.gpus}) or [""]


def _why(found: ResourceState, gpu: str, now: float) -> str:
    return state.why_unusable(found, [daemon.plan for daemon in found.daemons], gpu, now)
