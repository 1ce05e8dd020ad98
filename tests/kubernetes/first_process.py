"""The first process inside the namespaces of a cluster: makes them a machine of their own, then waits.

Started by `enclosure` as a program of its own, with the directory that holds the cluster's files. It ends when nobody
is left who could write to its standard input, whatever became of the one who started it; and with the first process,
the kernel ends every other one in here, and every mount and address with them.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

# What a kubelet sets where it is not so; the machine's own must stay as they are, so it finds these instead.
KERNEL_FLAGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
OWN = ("cni", "containerd", "kubelet", "plugwright")  # what the cluster has of its own in /var/lib


def main(state: Path, *addresses: str) -> None:
    mount("--make-rshared", "/")  # towards containers only: the machine gets nothing of what is mounted here
    replace_var_lib(state / "var-lib")
    replace("/var/log", state / "var-log")
    replace("/run", state / "run")
    pretend_kernel_flags(state / "sys")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in addresses:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end up here; this way none becomes a zombie
    print("ready", flush=True)
    sys.stdin.read()


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def replace(place: str, own: Path) -> None:
    own.mkdir()
    mount("--bind", own, place)


def replace_var_lib(own: Path) -> None:
    """All but the cluster's own directories stay: this checkout, or Python, may be somewhere in there."""
    own.mkdir()
    for entry in Path("/var/lib").iterdir():
        if entry.name in OWN:
            continue
        if entry.is_symlink():
            (own / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (own / entry.name).mkdir()
            mount("--rbind", entry, own / entry.name)
    for name in OWN:
        (own / name).mkdir()
    mount("--rbind", own, "/var/lib")


def pretend_kernel_flags(own: Path) -> None:
    own.mkdir()
    for name, text in KERNEL_FLAGS.items():
        flag, pretended = Path("/proc/sys", name), own / name.replace("/", ".")
        if flag.exists():
            pretended.write_text(f"{text}\n")
            mount("--bind", pretended, flag)


if __name__ == "__main__":
    os.umask(0o022)
    main(Path(sys.argv[1]), *sys.argv[2:])
