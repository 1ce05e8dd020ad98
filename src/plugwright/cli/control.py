"""Requests to a running daemon through its control socket, with errors an operator can act on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.errors import ConfigError, PeerGone
from plugwright.system import json_lines
from plugwright.text import clean

__all__ = ["ask", "control_socket", "follow", "plugin_command"]

F = TypeVar("F", bound=Callable[..., Any])
_ELSEWHERE = "is `plugwright run` running? In a cluster, run this in the daemon's pod: kubectl exec POD -- plugwright …"


def control_socket(command: F) -> F:
    return click.option(
        "--control-socket",
        type=click.Path(path_type=Path),
        default="/run/plugwright/control.sock",
        show_default=True,
        envvar="PLUGWRIGHT_CONTROL_SOCKET",
        show_envvar=True,
        help="Control socket of the daemon.",
    )(command)


def ask(path: Path, request: Mapping[str, object]) -> Any:
    """The daemon's one answer."""
    with _errors_of(path):
        return json_lines.ask(path, request)


def follow(path: Path, request: Mapping[str, object]) -> Iterator[Any]:
    """Answers for as long as the daemon runs."""
    with _errors_of(path):
        yield from json_lines.follow(path, request)


def plugin_command(path: Path, name: str, resource: str, arguments: Mapping[str, str]) -> None:
    """Has the plugin of `resource` carry out one of its own commands, and prints its answer."""
    click.echo(clean(ask(path, {"do": "plugin", "resource": resource, "name": name, "arguments": arguments})))


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise PeerGone(f"no daemon here: {path} does not exist; {_ELSEWHERE}") from error
    except ConnectionRefusedError as error:
        raise PeerGone(f"no daemon here: no process listens on {path}; {_ELSEWHERE}") from error
    except PermissionError as error:
        raise ConfigError(f"no permission to open {path}: try as root") from error
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error}") from error
