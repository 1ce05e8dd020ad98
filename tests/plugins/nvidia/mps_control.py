"""Stands in for nvidia-cuda-mps-control: a real daemon on a real socket, and a client that types commands to it.

Run as a program. `-f` is the daemon; without it, commands come on stdin, one in a line. What goes wrong is asked for by
files beside the pipe directory: `refuse` (does not start), `hang` (takes commands, never answers), `fault` (its servers
are in fault). `start_server` starts a child that outlives a daemon which is killed.
"""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
LOG = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
SOCKET = PIPE / "control"


def asked_for(fault: str) -> bool:
    return (PIPE.parent / fault).exists()


class Daemon:
    def __init__(self) -> None:
        self.percent = 100.0
        self.memory: dict[str, str] = {}
        self.servers: list[int] = []

    def answer(self, command: str) -> str:
        match command.split():
            case ["set_default_active_thread_percentage", percent]:
                self.percent = float(percent)
                return ""
            case ["get_default_active_thread_percentage"]:
                return str(self.percent)
            case ["set_default_device_pinned_mem_limit", place, size]:
                self.memory[self.known(place)] = size
                return ""
            case ["get_default_device_pinned_mem_limit", place]:
                return in_gibibytes(self.memory.get(place, "0M"))
            case ["get_server_list"]:
                return "\n".join(map(str, self.servers))
            case ["get_server_status", _]:
                return "FAULT" if asked_for("fault") else "ACTIVE"
            case ["start_server", "-uid", _]:
                self.servers.append(subprocess.Popen(["sleep", "600"]).pid)
                return ""
            case ["quit"]:
                for server in self.servers:
                    os.kill(server, 9)
                SOCKET.unlink()
                return ""
        return f"Unrecognized command {command}"

    @staticmethod
    def known(place: str) -> str:
        """GPUs are counted in the order of CUDA_VISIBLE_DEVICES."""
        return place if int(place) < len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) else sys.exit("no such GPU")


def in_gibibytes(size: str) -> str:
    found = re.fullmatch(r"(\d+)M", size)
    return f"{int(found[1]) // 1024}G" if found and int(found[1]) >= 1024 else size


def serve() -> None:
    LOG.mkdir(exist_ok=True)
    if asked_for("refuse"):
        sys.exit("An instance of this daemon is already running")
    (LOG / "environment").write_text("\n".join(f"{name}={text}" for name, text in sorted(os.environ.items())))
    (PIPE / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    (PIPE / "arguments").write_text(" ".join(sys.argv[1:]))
    SOCKET.unlink(missing_ok=True)
    daemon = Daemon()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(SOCKET))
        listener.listen()
        while SOCKET.exists():
            connection, _ = listener.accept()
            with suppress(BrokenPipeError), connection, connection.makefile("rw") as stream:
                for line in stream:
                    while asked_for("hang"):
                        time.sleep(0.01)
                    stream.write(daemon.answer(line.strip()) + "\0")
                    stream.flush()


def type_in() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(SOCKET))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        for line in sys.stdin:
            connection.sendall(line.encode())
            said = b""
            while not said.endswith(b"\0"):
                said += connection.recv(4096) or sys.exit("Broken pipe")
            print(said[:-1].decode())


if __name__ == "__main__":
    serve() if "-f" in sys.argv else type_in()
