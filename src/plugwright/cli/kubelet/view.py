"""How an emulated kubelet's events look: a line or a few for people, one JSON object for programs.

Nothing is decided here. `granted` is what a container that has just started was given.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from plugwright.kubelet.events import Call, Event, Finding, StateChange
from plugwright.kubelet.kubelet import Kubelet
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import Output
from plugwright.model import some

__all__ = ["Show", "Shown", "show_json", "show_text", "start_facts", "start_lines"]

Shown = Event | Output
Show = Callable[[Shown, RunContainerOptions | None], None]

_WIDTH = 24  # NotifyRegistrationStatus
_DEVICES = 4  # named in a line; more are counted
_GOOD = ("admitted", "list", "registered", "started", "succeeded")
_BAD = ("checkpoint", "invalid", "refused", "removed", "stopped")
_WORDS = ("OK", "open")  # outcomes of calls that went well
_BESIDE = " " * (12 + 2)  # as wide as the time

_good = partial(click.style, fg="green")
_bad = partial(click.style, fg="red")
_warn = partial(click.style, fg="yellow")
_dim = partial(click.style, dim=True)


def show_text(event: Shown, granted: RunContainerOptions | None) -> None:
    first, *rest = lines(event, granted)
    now = time.time()
    moment = time.strftime("%H:%M:%S", time.localtime(now))
    click.echo(f"{_dim(f'{moment}.{_thousandths(now)}')}  {first}")
    for line in rest:
        click.echo(f"{_BESIDE}{line}")


def show_json(event: Shown, granted: RunContainerOptions | None) -> None:
    now = time.time()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    click.echo(json.dumps({"time": f"{moment}.{_thousandths(now)}Z", **record(event, granted)}))


def _thousandths(moment: float) -> str:
    return f"{int(moment % 1 * 1000):03d}"


def lines(event: Shown, granted: RunContainerOptions | None) -> Iterator[str]:
    """The first with what happened, the others with what belongs to it."""
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
            yield from (f"{'':<{_WIDTH}}   {line}" for line in _granted(granted))


def record(event: Shown, granted: RunContainerOptions | None) -> Mapping[str, object]:
    if isinstance(event, Call):
        facts = asdict(event)
        del facts["began"]  # a clock of our own
        return {"event": "call", **facts}
    if isinstance(event, StateChange):
        got = {"granted": asdict(granted)} if granted is not None else {}
        return {"event": "state", "state": event.kind, "about": event.about, "text": event.text, **got}
    return {"event": "finding" if isinstance(event, Finding) else "output", **asdict(event)}


def start_lines(kubelet: Kubelet, folder: Path | None, pid: int) -> Iterator[str]:
    """What to know before anything happens: what this is, and how a plugin finds it."""
    settings, paths = kubelet.settings, kubelet.paths
    numa = f"{settings.numa} NUMA node{'s' if settings.numa > 1 else ''}"
    topology = f"{numa}, policy {settings.policy}, scope {settings.scope}"
    yield f"{click.style(f'kubelet {settings.version}', bold=True)} in {paths.root} ({topology})"
    yield f"  registration   {paths.kubelet_socket}"
    yield f"  plugin watcher {paths.plugins_registry}"
    yield f"  pod resources  {paths.pod_resources_socket}"
    yield "Point a plugin at it:"
    yield f"  plugwright run --kubelet-dir {paths.root} …   or PLUGWRIGHT_KUBELET_DIR={paths.root} for one of your own"
    yield f"  others         by their flag for the directory, as in --plugin-directory {paths.device_plugins}"
    if folder is not None:
        yield f"Pods are read from {folder} as files come, change and go."
    yield f"Ctrl-C ends it; kill -USR1 {pid} restarts the kubelet."


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
    asked = f" [{some(call.asked, _DEVICES)}]" if call.asked else ""
    took = f" {call.seconds * 1000:.1f} ms" if call.outcome != "open" else ""
    outcome = call.outcome if call.outcome in _WORDS else _bad(call.outcome)
    return f"{click.style(call.method.ljust(_WIDTH), fg='cyan')} {call.resource}{asked}{_dim(took)} {outcome}"


def _kind(kind: str) -> str:
    padded = kind.ljust(_WIDTH)
    return _good(padded) if kind in _GOOD else _bad(padded) if kind in _BAD else _warn(padded)


def _granted(granted: RunContainerOptions) -> Iterator[str]:
    yield from (f"env        {name}={value}" for name, value in granted.env.items())
    for mount in granted.mounts:
        yield f"mount      {mount.container_path} from {mount.host_path}{', read-only' if mount.read_only else ''}"
    for node in granted.nodes:
        yield f"node       {node.container_path} from {node.host_path}, {node.permissions or 'no permissions'}"
    yield from (f"annotation {name}={value}" for name, value in granted.annotations.items())
    yield from (f"CDI        {name}" for name in granted.cdi)
    if granted == RunContainerOptions({}, (), (), {}, ()):
        yield "nothing from any device"
