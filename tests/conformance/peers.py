"""Verifies programs of others, and prints the table of docs/verified.md: `python -m tests.conformance.peers DIR`.

DIR contains the programs, which you build as their projects describe, under the names below, and `fake/` with the
device nodes that this machine lacks. Names after DIR select programs. Reports are written to DIR/out.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["PEERS", "main"]

_NODES = "--bind {here}/fake/dev:/dev"
_NRI = "--bind {here}/fake/nri:/var/run/nri"  # with an NRI runtime that listens in it
PEERS: Mapping[str, str] = {
    "gdp": "-- {here}/gdp --listen 127.0.0.1:0 --plugin-directory {dir} "
    '--device {"name":"nulls","groups":[{"count":4,"paths":[{"path":"/dev/null"}]}]}',
    "everpeace": "--bind {here}/fake/everpeace:/k8s-host-device-plugin -- {here}/everpeace",
    "cc": f"{_NODES} -- {{here}}/cc --listen 127.0.0.1:0",
    "tpm": f"{_NODES} -- {{here}}/tpm",
    "intel-sgx": f"{_NODES} -- {{here}}/intel-sgx -enclave-limit 10 -provision-limit 10",
    "intel-gpu": "--bind {here}/fake/igpu/dev/dri:/dev/dri -- {here}/intel-gpu -prefix {here}/fake/igpu",
    "tas-sample": "--env DEVICE_RESOURCE_NAME=example.com/deviceA --env DEVICE_GENERATE_COUNT=4 -- {here}/tas-sample",
    "k8s-sample": "--env PLUGIN_SOCK_DIR=/var/lib/kubelet/device-plugins/ -- {here}/k8s-sample",
    "dra-example": "--dra -- {here}/dra-example",
    "intel-dra-gpu": "--dra --env SYSFS_ROOT={here}/fake/idra/fs/sysfs --env DEVFS_ROOT={here}/fake/idra/fs/dev "
    "-- {here}/intel-dra-gpu",
    "dracpu": f"--dra {_NRI} -- {{here}}/dracpu -kubeconfig {{kubeconfig}} -hostname-override {{node}} "
    "-bind-address 127.0.0.1:0",
    "dramemory": f"--dra {_NRI} -- {{here}}/dramemory -kubeconfig {{kubeconfig}} -hostname-override {{node}}",
}
_COUNTED = ("pass", "fail", "warning", "error", "not checked", "not applicable")
_FINDINGS = ("fail", "error", "warning")


def main(arguments: Sequence[str]) -> None:
    here, *names = arguments
    for name in names or [name for name in PEERS if Path(here, name).exists()]:
        print(row(Path(here).absolute(), name), flush=True)


def row(here: Path, name: str) -> str:
    """Verifies one program; its line of the table."""
    (here / "out").mkdir(exist_ok=True)
    report, began = here / "out" / f"{name}.json", time.monotonic()
    words = PEERS[name].replace("{here}", str(here)).split()
    command = [sys.executable, "-m", "plugwright", "verify", "-o", "json", *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if not done.stdout:
        return f"| {name} | not verified: {done.stderr.decode(errors='replace').strip().splitlines()[-1]} |"
    report.write_bytes(done.stdout)
    document = json.loads(done.stdout)
    counts = "/".join(str(document["counts"][status]) for status in _COUNTED)
    found = [f"{one['rule']} {one['status']}" for one in document["verdicts"] if one["status"] in _FINDINGS]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"| {name} | {counts} | {minutes}:{seconds:02} | {', '.join(found) or 'none'} |"


if __name__ == "__main__":
    main(sys.argv[1:])
