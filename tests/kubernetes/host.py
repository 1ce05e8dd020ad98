"""A node: its containerd and kubelet, and what tests run beside them, in namespaces of its own."""

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes import components
from tests.kubernetes.components import Files
from tests.kubernetes.enclosure import PATH, Enclosure, Process
from tests.kubernetes.kubectl import Kubectl, Object
from tests.kubernetes.waiting import until

__all__ = ["Host"]


class Host:
    """`Cluster` and `SecondNode` set the attributes and start the components."""

    version: str
    state: Path
    files: Files
    enclosure: Enclosure
    kubectl: Kubectl
    cgroup: str
    programs: dict[str, Path]
    components: dict[str, Process]

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
        found = self.kubectl.get("node", self.files.member.name)
        assert found is not None
        return found

    def load_image(self, archive: Path) -> None:
        """Gives the node what is in an image archive (docker-archive or OCI layout)."""
        address = f"--address={self.files.runtime_socket}"
        done = self.run(self.programs["ctr"], address, "--namespace=k8s.io", "images", "import", archive)
        assert done.returncode == 0, done.stderr

    def tag_image(self, image: str, tag: str) -> None:
        """Gives an image of the node another name."""
        address = f"--address={self.files.runtime_socket}"
        done = self.run(self.programs["ctr"], address, "--namespace=k8s.io", "images", "tag", "--force", image, tag)
        assert done.returncode == 0, done.stderr

    def start(self, component: str) -> None:
        arguments = components.commands(self.programs, self.files)[component]
        path = f"{self.programs['containerd'].parent}:{PATH}"  # where containerd finds its shim, and runc
        self.components[component] = self.enclosure.start(component, *arguments, env={"PATH": path})

    def stop(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.components[component].stop(number)

    def restart(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(component, number)
        self.start(component)

    def end_containers(self) -> None:
        """With their shims, as a reboot does."""
        tasks = (self.programs["ctr"], f"--address={self.files.runtime_socket}", "--namespace=k8s.io", "tasks")
        for task in self.run(*tasks, "list", "--quiet").stdout.split():
            self.run(*tasks, "delete", "--force", task)
        assert self.run(*tasks, "list", "--quiet").stdout == ""

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
        self.files.write_kubelet(self.cgroup, changes)
        self.restart("kubelet")

    def _until(self, what: str, fact: Callable[[], bool]) -> None:
        """Waits for `fact`, but no longer than all components live."""
        until(what, lambda: self._ended() or fact(), limit=120)
        ended = self._ended()
        assert not ended, f"{ended[0].name} has ended:\n" + "\n".join(ended[0].lines()[-20:])

    def _ended(self) -> list[Process]:
        return [process for process in self.components.values() if not process.alive]

    def _node_is_ready(self) -> bool:
        found = self.kubectl.get("node", self.files.member.name)
        conditions = found["status"].get("conditions", []) if found else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _end_components(self) -> None:
        for process in self.components.values():
            process.stop(signal.SIGKILL)
