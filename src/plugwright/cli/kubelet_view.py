"""The output of `plugwright kubelet`: an event as one or a few lines for people, or as a JSON object for programs.

`granted` always contains the options of a container that has just started.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from plugwright.cli.output import print_in_stream, wrapped
from plugwright.cluster.standalone.program import Shown
from plugwright.kubelet.events import Call, Finding, StateChange
from plugwright.kubelet.kubelet import Kubelet
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import Output
from plugwright.model import some

__all__ = ["show_document", "show_text", "start_facts", "start_lines"]

_WIDTH = 24  # the length of NotifyRegistrationStatus
_MAX_DEVICES = 4  # in one line; more are counted
_MAX_TEXT = 500  # characters of a value
_GOOD = ("admitted", "list", "loaded", "prepared", "registered", "reloaded", "started", "succeeded")
_BAD = ("checkpoint", "invalid", "not loaded", "refused", "removed", "stopped", "terminating")
_SUCCESSES = ("OK", "open")  # outcomes of calls
_INDENT = " " * (12 + 2)  # the width of the time
_CONTINUED = 16

_good = partial(click.style, fg="green")
_bad = partial(click.style, fg="red")
_warn = partial(click.style, fg="yellow")
_dim = partial(click.style, dim=True)


def show_text(event: Shown, granted: RunContainerOptions | None) -> None:
    first, *rest = lines(event, granted)
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    click.echo(wrapped(f"{_dim(f'{clock}.{_milliseconds(now)}')}  {first}", _CONTINUED))
    for line in rest:
        click.echo(wrapped(f"{_INDENT}{line}", _CONTINUED))


def show_document(output: str, event: Shown, granted: RunContainerOptions | None) -> None:
    now = time.time()
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    print_in_stream({"time": f"{timestamp}.{_milliseconds(now)}Z", **record(event, granted)}, output)


def _milliseconds(now: float) -> str:
    return f"{int(now % 1 * 1000):03d}"


def lines(event: Shown, granted: RunContainerOptions | None) -> Iterator[str]:
    """The event in the first line, followed by its details."""
    if isinstance(event, Call):
        yield _call(event)
    elif isinstance(event, Output):
        yield f"{_dim(event.about + ' |')} {event.text}"
    elif isinstance(event, Finding):
        yield f"{_warn(f'finding {event.fact}'.ljust(_WIDTH), bold=True)} {event.about}: {event.happened}"
        yield f"{'':<{_WIDTH}} a real kubelet {event.really} ({event.page})"
    else:
        yield f"{_kind(event.kind)} {event.about}{f': {event.text}' if event.text else ''}"
        if granted is not None:
            yield from (f"{'':<{_WIDTH}}   {line}" for line in _option_lines(granted))


def record(event: Shown, granted: RunContainerOptions | None) -> Mapping[str, object]:
    if isinstance(event, Call):
        fields = asdict(event)
        del fields["began"]  # of this process's clock, meaningless to others
        return {"event": "call", **fields}
    if isinstance(event, StateChange):
        options = {"granted": asdict(granted)} if granted is not None else {}
        return {"event": "state", "state": event.kind, "about": event.about, "text": event.text, **options}
    return {"event": "finding" if isinstance(event, Finding) else "output", **asdict(event)}


def start_lines(kubelet: Kubelet, folder: Path | None, pid: int) -> Iterator[str]:
    """The settings, the sockets, and how to point a plugin at them."""
    settings, paths = kubelet.settings, kubelet.paths
    numa = f"{settings.numa} NUMA node{'s' if settings.numa > 1 else ''}"
    topology = f"{numa}, policy {settings.policy}, scope {settings.scope}"
    yield f"{click.style(f'kubelet {settings.version}', bold=True)} in {paths.root} ({topology})"
    yield f"  registration   {paths.kubelet_socket}"
    yield f"  plugin watcher {paths.plugins_registry}"
    yield f"  pod resources  {paths.pod_resources_socket}"
    yield "Point a plugin at it:"
    yield f"  plugwright run --kubelet-dir {paths.root} …   or PLUGWRIGHT_KUBELET_DIR={paths.root} for one of your own"
    yield f"  others         with their flag for the directory, such as --plugin-directory {paths.device_plugins}"
    if folder is not None:
        yield f"Pods are read from {folder} as files are added, changed and deleted."
    yield f"Ctrl-C stops it; kill -USR1 {pid} restarts the kubelet."


def start_facts(kubelet: Kubelet, folder: Path | None, pid: int) -> Mapping[str, object]:
    settings, paths = kubelet.settings, kubelet.paths
    return {
        "event": "start",
        "version": settings.version,
        "numa": settings.numa,
        "policy": settings.policy,
        "scope": settings.scope,
        "root": str(paths.root),
        "device_plugins": str(paths.device_plugins),
        "kubelet_socket": str(paths.kubelet_socket),
        "plugins_registry": str(paths.plugins_registry),
        "pod_resources_socket": str(paths.pod_resources_socket),
        "pods": str(folder) if folder is not None else None,
        "pid": pid,
    }


def _call(call: Call) -> str:
    arguments = f" [{some(call.asked, _MAX_DEVICES)}]" if call.asked else ""
    duration = f" {call.seconds * 1000:.1f} ms" if call.outcome != "open" else ""
    outcome = call.outcome if call.outcome in _SUCCESSES else _bad(call.outcome)
    return f"{click.style(call.method.ljust(_WIDTH), fg='cyan')} {call.resource}{arguments}{_dim(duration)} {outcome}"


def _kind(kind: str) -> str:
    padded = kind.ljust(_WIDTH)
    return _good(padded) if kind in _GOOD else _bad(padded) if kind in _BAD else _warn(padded)


def _option_lines(granted: RunContainerOptions) -> Iterator[str]:
    yield from (f"env        {name}={_short(value)}" for name, value in granted.env.items())
    for mount in granted.mounts:
        yield f"mount      {mount.container_path} from {mount.host_path}{', read-only' if mount.read_only else ''}"
    for node in granted.nodes:
        yield f"node       {node.container_path} from {node.host_path}, {node.permissions or 'no permissions'}"
    yield from (f"annotation {name}={_short(value)}" for name, value in granted.annotations.items())
    yield from (f"CDI        {name}" for name in granted.cdi)
    if granted == RunContainerOptions({}, (), (), {}, ()):
        yield "no options from devices"


def _short(text: str) -> str:
    """A value of readable length: a plugin can set a variable of a megabyte, which must not fill the terminal."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"
