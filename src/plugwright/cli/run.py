"""`plugwright run`: serve the configured resources on this node."""

import json
import os
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from plugwright import serve
from plugwright.cli import logs
from plugwright.cli.options import UncheckedPath, duration, optional_duration
from plugwright.cli.plugin_target import load_plugins
from plugwright.cli.run_file import configured, serve_file
from plugwright.cli.run_settings import CONFIG, SETTINGS, RunSetting, addresses
from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.run import log_start, rediscover, run_until_stopped
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["run", "show_valid"]

_PATH = UncheckedPath()
_SOURCE_COLUMN = 60  # of --print-config; in longer lines the source follows directly


def _option(setting: RunSetting, *names: str) -> click.Option:
    kind: Any = setting.kind
    if isinstance(kind, tuple):
        kind = click.Choice(kind)
    elif kind is Path:
        kind = _PATH
    elif kind is float:
        kind = optional_duration
    elif kind is not str:
        kind = addresses
    variables = list(setting.envvars)
    return click.Option(
        [*names, setting.flag],
        type=kind,
        default=setting.default,
        show_default=setting.shows_default,
        metavar=setting.metavar,
        envvar=variables if len(variables) > 1 else variables[0],
        show_envvar=True,
        help=setting.help,
    )


_SETTINGS = [_option(setting) for setting in SETTINGS]
_EXAMPLES = """\b
Examples:
  plugwright run -c plugwright.yaml --listen 127.0.0.1:9400
  plugwright run tape.py:Tape     a plugin of your own, in place of the file
"""


@click.command(epilog=_EXAMPLES)
@click.argument("targets", metavar="[MODULE:CLASS]...", nargs=-1)
@click.option("--check", is_flag=True, help="Only check the file.")
@click.option("--print-config", type=click.Choice(["text", "json"]), is_flag=False, flag_value="text",
              help="Only print every effective value and its source.")  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="Only show which devices would be listed and what each Allocate would answer, without a kubelet.",
)
@click.option("--serve", "api", type=click.Choice([api.value for api in ServeMode]),
              help="With MODULE:CLASS: API that offers the devices.  [default: the plugin's choice]")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "wide", "json", "yaml"]),
              help="Output format of --once.  [default: text]")  # fmt: skip
@click.option("--timeout", type=duration, metavar="TIME",
              help="With --once: time limit for each plugin.  [default: 10s]")  # fmt: skip
@click.pass_context
def run(
    context: click.Context,
    /,
    targets: tuple[str, ...],
    path: Path,
    check: bool,
    print_config: str | None,
    **values: Any,
) -> None:
    """Serve the configured resources on this node, until SIGTERM or SIGINT.

    Reads the file again on SIGHUP and when it changes, and changes only the affected resources. An invalid file is
    rejected with its line number, and the previous version stays active, even across a restart.

    To serve a plugin of your own, name it instead of a file: MODULE:CLASS, FILE.py:CLASS, or FILE.py if it contains
    only one.
    """
    once, output, timeout, api = (values.pop(name) for name in ("once", "output", "timeout", "api"))
    if not once and (output or timeout):
        raise click.UsageError("--output and --timeout are for --once")
    if api and not targets:
        raise click.UsageError("--serve is for a plugin of your own; in the file it is the key `serve` of a resource")
    if targets:
        _run_plugins(context, targets, values, api)
        return
    if not (once or print_config or check):
        serve_file({**values, "config": path})
        return
    loaded = schema.load(path)
    if once:
        from plugwright.cli import once as dry  # not loaded by daemons

        is_default = context.get_parameter_source("log_level") is click.core.ParameterSource.DEFAULT
        logs.configure(values["log_format"], "error" if is_default else values["log_level"])
        context.exit(dry.show(loaded, output or "text", timeout or 10.0))
    elif print_config:
        _print_effective(context, loaded, print_config)
    else:
        show_valid(path, loaded)


def show_valid(path: Path, loaded: Config) -> None:
    """Prints that the file is valid, and which of its names depend on the node."""
    count = len(loaded.file.resources)
    click.echo(f"{path}: {count} resource{'' if count == 1 else 's'}, valid")
    for entry in loaded.file.resources:
        if entry.is_template:
            click.echo(f"{entry.name}: the machine's devices decide its names: `plugwright run --once` shows them")


run.params[1:1] = [_option(CONFIG, "-c", "path")]
run.params.extend(_SETTINGS)


def _run_plugins(context: click.Context, targets: tuple[str, ...], values: dict[str, Any], api: str | None) -> None:
    if context.get_parameter_source("path") is click.core.ParameterSource.COMMANDLINE or context.params["print_config"]:
        raise click.UsageError("plugins are served without a file: leave out --config and --print-config")
    if context.params["check"]:
        for plugin in _plugins(targets):
            click.echo(f"{type(plugin).__name__}: {plugin.resource}, valid")
        return
    settings = configured(values)
    with logs.failure_in_log():
        plugins = _plugins(targets)
        if api is not None:
            for plugin in plugins:
                plugin.serve = replace(plugin.serve, api=ServeMode(api))
        log_start(plugins)
        run_until_stopped(plugins, settings, rediscover, drivers=serve.resource_driver)


def _plugins(targets: tuple[str, ...]) -> list[Plugin]:
    return check_plugins(plugin for target in targets for plugin in load_plugins(target))


def _print_effective(context: click.Context, loaded: Config, style: str) -> None:
    from plugwright.config.effective_values import effective  # not loaded by daemons

    named = {option.name: option for option in context.command.params if isinstance(option, click.Option)}
    shown = [named["path"], *_SETTINGS]
    values = context.params | {"device_plugins_dir": _device_plugins_dir(context)}
    rows = [(_label(option), _plain(values[option.name or ""]), _source(context, option)) for option in shown]
    rows += [(name, _plain(value), source) for name, value, source in effective(loaded)]
    if style == "json":
        entries = [{"key": key, "value": value, "source": source} for key, value, source in rows]
        click.echo(json.dumps(entries, indent=2))
        return
    lines = [(f"{key}: {json.dumps(value)}", source) for key, value, source in rows]
    width = min(_SOURCE_COLUMN, max(len(line) for line, _ in lines))
    for line, source in lines:
        click.echo(f"{line:<{width}}  # {source}")


def _label(option: click.Option) -> str:
    return "config" if option.name == "path" else option.name or ""


def _device_plugins_dir(context: click.Context) -> Path:
    return KubeletPaths.under(context.params["kubelet_dir"], context.params["device_plugins_dir"]).device_plugins


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _source(context: click.Context, option: click.Option) -> str:
    source = context.get_parameter_source(option.name or "")
    if source is click.core.ParameterSource.COMMANDLINE:
        return option.opts[-1]
    if source is not click.core.ParameterSource.ENVIRONMENT:
        return "default"
    names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return next((name for name in names if os.environ.get(name)), "default")
