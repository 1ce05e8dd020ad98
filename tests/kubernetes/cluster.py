"""One cluster of one node: real programs, in namespaces of their own.

    with Cluster(version) as cluster:
        cluster.kubectl("get", "nodes")
        cluster.run("plugwright", "status")

What it needs of the machine is checked and installed by `machine`, what it runs is built by `building`.

    python -m tests.kubernetes.cluster [VERSION]

brings one up, opens a shell on its node and takes it down when the shell ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kubernetes import building, cgroups, images, machine
from tests.kubernetes.building import Recipe
from tests.kubernetes.components import API, FIRST, Files
from tests.kubernetes.enclosure import PATH, Enclosure
from tests.kubernetes.host import Host
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.waiting import until

__all__ = ["Cluster", "main"]


class Cluster(Host):
    def __init__(self, version: str) -> None:
        self.version = version
        self.components = {}
        self._stack = ExitStack()

    @staticmethod
    def recipes(version: str) -> tuple[Recipe, ...]:
        """What has to be built for a cluster; entering it builds what is missing."""
        return building.ETCD, building.CONTAINERD, building.kubernetes(version)

    def __enter__(self) -> "Cluster":
        self.programs = {
            program: building.build(recipe) / program
            for recipe in self.recipes(self.version)
            for program in recipe.packages
        }
        with ExitStack() as stack:
            place = machine.Place()
            stack.callback(place.remove)
            self.name, self.state, self.files = place.name, place.directory, Files(place.directory)
            self.cgroup, self.lock = place.name, place.lock
            cgroups.make(self.cgroup)
            self.enclosure = Enclosure(self.state, kept_open=[self.lock])
            self.kubectl = Kubectl(self.enclosure, self.programs["kubectl"], self.files.admin)
            stack.callback(self._end_components)
            stack.callback(self.enclosure.close)
            self.enclosure.open(API, FIRST.address)
            try:
                self._bring_up()
            except BaseException as error:
                error.add_note(f"logs are kept in {self.keep_logs()}")
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def upgrade(self, version: str) -> None:
        """Exchanges the programs of Kubernetes, the kubelet last, because none may be newer than the API server.

        Containers go on meanwhile.
        """
        recipe = building.kubernetes(version)
        place = building.build(recipe)
        self.programs.update({program: place / program for program in recipe.packages})
        self.version = version
        self.restart("kube-apiserver")
        self._until("the API server is ready", lambda: self.kubectl.works("get", "--raw=/readyz"))
        for component in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self.restart(component)
        self._until("the kubelet is the new one", lambda: self._kubelet_version() == f"v{version}")

    @contextmanager
    def rebooting(self) -> Iterator[None]:
        """The node goes down before, and comes up after, with another boot id and an empty /run.

        The API server is back only when the block has ended: a kubelet that boots waits for it with its pods.
        """
        self.stop("kubelet", signal.SIGKILL)
        self.end_containers()
        for component in ("containerd", "kube-apiserver"):
            self.stop(component, signal.SIGKILL)
        self.run("find", "/run", "-xdev", "-mindepth", "1", "-delete")  # what is mounted there stays
        boot_id = self.state / f"boot-{uuid.uuid4()}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        done = self.run("mount", "--bind", boot_id, "/proc/sys/kernel/random/boot_id")
        assert done.returncode == 0, done.stderr
        self.files.runtime_socket.unlink(missing_ok=True)
        self.start("containerd")
        until("containerd answers", self.files.runtime_socket.exists)
        self.start("kubelet")
        try:
            yield
        finally:
            self.start("kube-apiserver")
            until("the API server is ready", lambda: self.kubectl.works("get", "--raw=/readyz"))

    def keep_logs(self, *which: str) -> Path:
        """Copies what all components have logged to where it is found when the cluster is gone.

        `which` distinguishes the cluster from that of the session.
        """
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        name = "-".join(each for each in (self.version, worker, *which) if each)
        kept = building.cache() / "logs-of-last-failure" / name
        shutil.rmtree(kept, ignore_errors=True)
        return Path(shutil.copytree(self.enclosure.logs, kept))

    def _bring_up(self) -> None:
        cni = machine.cni_plugins()
        assert cni is not None
        self.files.write(self.cgroup, cni)
        for component in ("etcd", "containerd", "kube-apiserver"):
            self.start(component)
        archive = self.state / "busybox.tar"
        images.write_busybox(archive)
        self._until("containerd answers", self.files.runtime_socket.exists)
        self.load_image(archive)
        self._until("the API server is ready", lambda: self.kubectl.works("get", "--raw=/readyz"))
        for component in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self.start(component)
        self._until("the node is ready", self._node_is_ready)
        self._until("pods can be made", lambda: self.kubectl.works("get", "serviceaccount", "default"))

    def _kubelet_version(self) -> str:
        return str(self.node()["status"]["nodeInfo"]["kubeletVersion"])


def main(version: str = building.DEFAULT_VERSION) -> None:
    machine.remove_remains()
    machine.install_packages()
    with Cluster(version) as cluster:
        print(
            f"{cluster.name}: kubectl works; logs are in {cluster.enclosure.logs}; it ends with this shell", flush=True
        )
        path = f"{cluster.kubectl.program.parent}:{Path(sys.executable).parent}:{PATH}"
        shell = cluster.enclosure.command(os.environ.get("SHELL", "sh"))
        subprocess.run(shell, env={**os.environ, **cluster.kubectl.environment, "PATH": path}, check=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
