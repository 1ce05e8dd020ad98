"""A fake of `nvidia-cuda-mps-control` without flags: sends the commands on stdin, one in a line, to the daemon.

Run as a program, a dozen times a second by every supervisor of a test: it imports only what Python has loaded anyway.
"""

import os
import sys
from _socket import AF_UNIX, socket


def send_commands() -> None:
    connection = socket(AF_UNIX)
    try:
        connection.connect(f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control")
    except OSError:
        sys.exit("Cannot find MPS control daemon process")
    for line in sys.stdin:
        connection.sendall(line.encode())
        answer = b""
        while not answer.endswith(b"\0"):
            answer += connection.recv(4096) or sys.exit("Broken pipe")
        print(answer[:-1].decode())


if __name__ == "__main__":
    send_commands()
