"""Runs `plugwright` commands in processes forked from this one, which has loaded their code: a tenth of the CPU time.

A request is a connection to the socket of the first argument: arguments, environment and directory, with the
descriptors of standard output and standard error. The answer is the exit code. The server ends with its standard input.
"""

import gc
import os
import pkgutil
import runpy
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

import msgspec

__all__ = ["REQUEST_SIZE", "CommandRequest"]

REQUEST_SIZE = 2**17


class CommandRequest(msgspec.Struct, frozen=True):
    """A command's arguments, its environment and working directory, as the system has them."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes


def _load_commands() -> None:
    import plugwright.cli

    for module in pkgutil.iter_modules(plugwright.cli.__path__):
        import_module(f"plugwright.cli.{module.name}")


def _next_command(name: str) -> CommandRequest:
    """Returns in a forked process, once for each request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as events:
        listener.bind(f"\0{name}")
        listener.listen()
        events.register(listener.fileno(), selectors.EVENT_READ)
        events.register(sys.stdin.fileno(), selectors.EVENT_READ)
        os.write(sys.stdout.fileno(), b"ready\n")
        while True:
            for key, _ in events.select():
                if key.fd == sys.stdin.fileno():
                    os._exit(0)
                elif key.fd in running:
                    events.unregister(key.fd)
                    _answer(key.fd, *running.pop(key.fd))
                else:
                    connection, _ = listener.accept()
                    content, outputs, *_ = socket.recv_fds(connection, REQUEST_SIZE, 2)
                    if not (pid := os.fork()):
                        _redirect(outputs)
                        return msgspec.msgpack.decode(content, type=CommandRequest)
                    for output in outputs:
                        os.close(output)
                    ended = os.pidfd_open(pid)
                    running[ended] = pid, connection
                    events.register(ended, selectors.EVENT_READ)


def _redirect(outputs: Iterable[int]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)


def _answer(ended: int, pid: int, connection: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(ended)
    with connection, suppress(BrokenPipeError):  # the test waits no longer
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _run(request: CommandRequest) -> None:
    os.closerange(3, 2**10)
    os.environb.clear()
    os.environb.update(request.environment)
    os.chdir(request.directory)
    time.tzset()
    sys.path[0] = os.fsdecode(request.directory)
    sys.argv[1:] = map(os.fsdecode, request.arguments)
    runpy.run_module("plugwright", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _load_commands()
    gc.collect()
    gc.freeze()
    _run(_next_command(sys.argv[1]))
