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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kubernetes import building, cgroups, components, images, machine
from tests.kubernetes.building import Recipe
from tests.kubernetes.components import API, NODE, NODE_ADDRESS, Files
from tests.kubernetes.enclosure import PATH, Enclosure, Process
from tests.kubernetes.kubectl import Kubectl, Object
from tests.kubernetes.waiting import until

__all__ = ["Cluster", "main"]


class Cluster:
    def __init__(self, version: str) -> None:
        self.version = version
        self.components: dict[str, Process] = {}
        self._stack = ExitStack()

    @staticmethod
    def recipes(version: str) -> tuple[Recipe, ...]:
        """What has to be built for a cluster; entering it builds what is missing."""
        return building.ETCD, building.CONTAINERD, building.kubernetes(version)

    def __enter__(self) -> "Cluster":
        self._programs = {
            program: building.build(recipe) / program
            for recipe in self.recipes(self.version)
            for program in recipe.packages
        }
        with ExitStack() as stack:
            place = machine.Place()
            stack.callback(place.remove)
            self.name, self.state, self.files = place.name, place.directory, Files(place.directory)
            cgroups.make(self.name)
            self.enclosure = Enclosure(self.state, kept_open=[place.lock])
            self.kubectl = Kubectl(self.enclosure, self._programs["kubectl"], self.files.admin)
            stack.callback(self._end_components)
            stack.callback(self.enclosure.close)
            self.enclosure.open(API, NODE_ADDRESS)
            try:
                self._bring_up()
            except BaseException as error:
                error.add_note(f"logs are kept in {self.keep_logs()}")
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's directory as it is seen from outside."""
        return self.state / "var-lib" / "kubelet"

    @property
    def kubelet(self) -> Process:
        return self.components["kubelet"]

    def run(self, *arguments: str | Path, given: str = "", limit: float = 120) -> "subprocess.CompletedProcess[str]":
        """Runs a command on the node, with the administrator's KUBECONFIG."""
        return self.enclosure.run(*arguments, given=given, env=self.kubectl.environment, limit=limit)

    def node(self) -> Object:
        found = self.kubectl.get("node", NODE)
        assert found is not None
        return found

    def load_image(self, archive: Path) -> None:
        """Gives the node what is in an image archive (docker-archive or OCI layout)."""
        address = f"--address={self.files.runtime_socket}"
        done = self.run(self._programs["ctr"], address, "--namespace=k8s.io", "images", "import", archive)
        assert done.returncode == 0, done.stderr

    def tag_image(self, image: str, tag: str) -> None:
        """Gives an image of the node another name."""
        address = f"--address={self.files.runtime_socket}"
        done = self.run(self._programs["ctr"], address, "--namespace=k8s.io", "images", "tag", "--force", image, tag)
        assert done.returncode == 0, done.stderr

    def start(self, component: str) -> None:
        arguments = components.commands(self._programs, self.files)[component]
        path = f"{self._programs['containerd'].parent}:{PATH}"  # where containerd finds its shim, and runc
        self.components[component] = self.enclosure.start(component, *arguments, env={"PATH": path})

    def stop(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.components[component].stop(number)

    def restart(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(component, number)
        self.start(component)

    def upgrade(self, version: str) -> None:
        """Exchanges the programs of Kubernetes, the kubelet last, because none may be newer than the API server.

        Containers go on meanwhile.
        """
        recipe = building.kubernetes(version)
        place = building.build(recipe)
        self._programs.update({program: place / program for program in recipe.packages})
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

    def end_containers(self) -> None:
        """With their shims, as a reboot does."""
        tasks = (self._programs["ctr"], f"--address={self.files.runtime_socket}", "--namespace=k8s.io", "tasks")
        for task in self.run(*tasks, "list", "--quiet").stdout.split():
            self.run(*tasks, "delete", "--force", task)
        assert self.run(*tasks, "list", "--quiet").stdout == ""

    def keep_logs(self) -> Path:
        """Copies what all components have logged to where it is found when the cluster is gone."""
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        kept = building.cache() / "logs-of-last-failure" / f"{self.version}{worker and '-'}{worker}"
        shutil.rmtree(kept, ignore_errors=True)
        return Path(shutil.copytree(self.enclosure.logs, kept))

    def revive(self) -> None:
        """Starts what has ended: a test that failed halfway must not take the others with it."""
        for process in self._ended():
            self.start(process.name)

    @contextmanager
    def kubelet_settings(self, **changes: object) -> Iterator[None]:
        """Another KubeletConfiguration while inside; the kubelet is restarted before and after."""
        self._reconfigure(changes)
        try:
            yield
        finally:
            self._reconfigure({})

    def _reconfigure(self, changes: Mapping[str, object]) -> None:
        self.files.write_kubelet(self.name, changes)
        self.restart("kubelet")

    def _bring_up(self) -> None:
        cni = machine.cni_plugins()
        assert cni is not None
        self.files.write(self.name, cni)
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

    def _until(self, what: str, fact: Callable[[], bool]) -> None:
        """Waits for `fact`, but no longer than all components live."""
        until(what, lambda: self._ended() or fact(), limit=120)
        ended = self._ended()
        assert not ended, f"{ended[0].name} has ended:\n" + "\n".join(ended[0].lines()[-20:])

    def _ended(self) -> list[Process]:
        return [process for process in self.components.values() if not process.alive]

    def _kubelet_version(self) -> str:
        return str(self.node()["status"]["nodeInfo"]["kubeletVersion"])

    def _node_is_ready(self) -> bool:
        found = self.kubectl.get("node", NODE)
        conditions = found["status"].get("conditions", []) if found else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _end_components(self) -> None:
        for process in self.components.values():
            process.stop(signal.SIGKILL)


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
