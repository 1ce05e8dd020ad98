"""The walls around the cluster: what is inside does not touch the machine, and goes away however a run ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kubernetes import cgroups, machine
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.waiting import until

_ROOT = Path(__file__).parents[2]
_RUN = """\
import sys, time
from tests.kubernetes import cgroups, machine
from tests.kubernetes.enclosure import Enclosure
place = machine.Place()
cgroups.make(place.name)
enclosure = Enclosure(place.directory, kept_open=[place.lock])
enclosure.open("198.18.0.1")
sleeper = enclosure.start("sleeper", "sleep", "1000000")
print(place.name, sleeper.pid, flush=True)
time.sleep(1000000)
"""


def test_the_machine_sees_no_mount_and_no_address_of_the_cluster(cluster: Cluster) -> None:
    assert str(cluster.state) in cluster.run("cat", "/proc/mounts").stdout
    assert str(cluster.state) not in Path("/proc/self/mounts").read_text()
    assert "198.18.0.1" in cluster.run("ip", "address").stdout
    assert "198.18.0.1" not in subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout


def test_the_cluster_sees_no_process_of_the_machine(cluster: Cluster) -> None:
    programs = cluster.run("sh", "-c", "cat /proc/[0-9]*/comm").stdout.split()
    assert {"etcd", "kubelet", "containerd", "kube-apiserver"} <= set(programs)
    assert cluster.run("sh", "-c", f"grep -l {os.getpid()} /proc/*/status").stdout == ""


def test_a_run_that_was_killed_leaves_nothing_that_the_next_does_not_remove(cluster: Cluster) -> None:
    run = subprocess.Popen([sys.executable, "-c", _RUN], stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    assert run.stdout is not None
    name, sleeper = run.stdout.readline().split()
    assert not {name, cluster.name} & set(machine.remove_remains()), "both this run and the other are alive"

    run.send_signal(signal.SIGKILL)
    run.communicate()
    until("everything inside has ended", lambda: not Path(f"/proc/{sleeper}").exists(), limit=10)

    until("nothing is left of it", lambda: _is_removed(name))
    assert cluster.state.exists()


def _is_removed(name: str) -> bool:
    """After another attempt; a run that starts at the same time may remove it, too."""
    machine.remove_remains()
    return not Path("/tmp", name).exists() and name not in cgroups.names(name)
