"""Asks a running daemon through its control socket."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.errors import ConfigError, PeerGone, PeerRefused

__all__ = ["ask", "control_socket", "follow"]

F = TypeVar("F", bound=Callable[..., Any])
_TIMEOUT = 15.0


def control_socket(command: F) -> F:
    return click.option(
        "--control-socket",
        type=click.Path(path_type=Path),
        default="/run/plugwright/control.sock",
        show_default=True,
        envvar="PLUGWRIGHT_CONTROL_SOCKET",
        show_envvar=True,
        help="The control socket of the daemon.",
    )(command)


def ask(path: Path, request: Mapping[str, object]) -> Any:
    """The daemon's one answer."""
    return next(_answers(path, request, _TIMEOUT))


def follow(path: Path, request: Mapping[str, object]) -> Iterator[Any]:
    """Answers for as long as the daemon runs."""
    return _answers(path, request, None)


def _answers(path: Path, request: Mapping[str, object], timeout: float | None) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        _connect(connection, path)
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            try:
                for line in stream:
                    yield _answer(line)
            except TimeoutError as error:
                raise PeerGone(f"the daemon did not answer within {timeout:g} s") from error
    raise PeerGone("the daemon closed the connection")


def _connect(connection: socket.socket, path: Path) -> None:
    try:
        connection.connect(str(path))
    except FileNotFoundError as error:
        raise PeerGone(f"no daemon here: there is no {path}; is `plugwright run` running?") from error
    except ConnectionRefusedError as error:
        raise PeerGone(f"no daemon here: nobody listens on {path}") from error
    except PermissionError as error:
        raise ConfigError(f"no permission to open {path}: try as root") from error
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error}") from error


def _answer(line: bytes) -> Any:
    answer = json.loads(line)
    if "error" in answer:
        raise PeerRefused("", answer["error"])
    return answer["ok"]
