"""A fake of `nvidia-cuda-mps-control -f`: a daemon on a socket. `control_client` sends commands to it.

Run as a program. Files beside the pipe directory cause faults: `refuse` (does not start), `hang` (accepts commands,
never answers), `fault` (its servers are in fault). `start_server` starts a child that outlives a killed daemon.
"""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
LOG = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
SOCKET = PIPE / "control"


def has_fault(fault: str) -> bool:
    return (PIPE.parent / fault).exists()


class Daemon:
    def __init__(self) -> None:
        self.percent = 100.0
        self.memory: dict[str, str] = {}
        self.servers: list[int] = []
        self.server_percent: dict[str, str] = {}
        self.server_memory: dict[str, str] = {}

    def answer(self, line: str) -> str:
        command, *words = line.split()
        answers: dict[str, Callable[..., object]] = {
            "set_default_active_thread_percentage": self.set_percent,
            "get_default_active_thread_percentage": lambda: self.percent,
            "set_default_device_pinned_mem_limit": self.set_memory,
            "get_default_device_pinned_mem_limit": lambda gpu: in_gibibytes(self.memory.get(gpu, "0M")),
            "get_server_list": lambda: "\n".join(map(str, self.servers)),
            "get_server_status": lambda _: "FAULT" if has_fault("fault") else "ACTIVE",
            "set_active_thread_percentage": lambda server, percent: self.server_percent.update({server: percent}),
            "get_active_thread_percentage": lambda server: float(self.server_percent.get(server, self.percent)),
            "set_device_pinned_mem_limit": lambda server, _, size: self.server_memory.update({server: size}),
            "get_device_pinned_mem_limit": lambda server, gpu: in_gibibytes(self.of_server(server, gpu)),
            "exact_memory": lambda server: self.of_server(server, "0"),  # not NVIDIA's
            "start_server": lambda *_: self.servers.append(subprocess.Popen(["sleep", "600"]).pid),
            "quit": self.quit,
        }
        result = answers[command](*words) if command in answers else f"Unrecognized command {line}"
        return "" if result is None else str(result)

    def set_percent(self, percent: str) -> None:
        self.percent = float(percent)

    def set_memory(self, gpu: str, size: str) -> None:
        self.memory[self.known(gpu)] = size

    def of_server(self, server: str, gpu: str) -> str:
        return self.server_memory.get(server, self.memory.get(gpu, "0M"))

    def quit(self) -> None:
        for server in self.servers:
            os.kill(server, 9)
        SOCKET.unlink()

    @staticmethod
    def known(gpu: str) -> str:
        """GPUs are counted in the order of CUDA_VISIBLE_DEVICES."""
        return gpu if int(gpu) < len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) else sys.exit("no such GPU")


def in_gibibytes(size: str) -> str:
    match = re.fullmatch(r"(\d+)M", size)
    return f"{int(match[1]) // 1024}G" if match and int(match[1]) >= 1024 else size


def serve() -> None:
    LOG.mkdir(exist_ok=True)
    if has_fault("refuse"):
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
                    while has_fault("hang"):
                        time.sleep(0.01)
                    stream.write(daemon.answer(line.strip()) + "\0")
                    stream.flush()


if __name__ == "__main__":
    serve()
