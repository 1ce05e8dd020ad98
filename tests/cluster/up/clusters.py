"""Clusters of `plugwright up` in a test: real processes, and a real client over TLS."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lightkube
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod
from tests.cli.processes import Ended, Running, ended, python, running

__all__ = ["RuntimeDirectory", "Up", "allocatable", "client", "pod", "ready", "until_node"]


class RuntimeDirectory:
    """The XDG_RUNTIME_DIR of a test: temporary clusters and the commands that look for them use it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "run"
        self.root.mkdir(mode=0o700)
        self.environment = {"XDG_RUNTIME_DIR": str(self.root), "TMPDIR": str(self.root)}

    async def ask(self, *arguments: object) -> Ended:
        return await ended(python("-m", "plugwright", *arguments), self.environment)

    @asynccontextmanager
    async def up(self, *flags: object) -> AsyncIterator["Up"]:
        """`plugwright up` while inside, from the moment it is ready."""
        command = python("-m", "plugwright", "up", "--output", "json", *flags)
        async with running(command, self.environment) as process:
            info = json.loads(await process.out.until("server"))
            yield Up(process, info)
        assert "Traceback" not in "\n".join(process.err.all)


class Up:
    def __init__(self, process: Running, info: dict[str, Any]) -> None:
        self.process, self.info = process, info

    @property
    def kubeconfig(self) -> Path:
        return Path(self.info["kubeconfig"])

    @property
    def client(self) -> lightkube.Client:
        return client(self.kubeconfig)

    def socket(self, node: str = "node-1") -> str:
        return str(self.info["nodes"][node]["control_socket"])

    def devices(self, pod: str) -> list[str]:
        """The lines of a pod's log that name its devices."""
        with self.client as api:
            return [line for line in api.log(pod, namespace="default") if "VISIBLE" in line]


def client(kubeconfig: Path) -> lightkube.Client:
    return lightkube.Client(lightkube.KubeConfig.from_file(kubeconfig))


def pod(name: str, **limits: str) -> Pod:
    requests = {f"mock/{resource}": count for resource, count in limits.items()}
    main = Container(name="main", image="demo", resources=ResourceRequirements(limits=requests))
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(containers=[main]))


def until_node(api: lightkube.Client, name: str, fact: Callable[[Node], bool]) -> Node:
    """The first version of the node for which `fact` holds; the server ends the watch after 30 seconds."""
    changes = api.watch(Node, fields={"metadata.name": name}, server_timeout=30)
    return next(node for _, node in changes if fact(node))


def ready(node: Node) -> str:
    assert node.status is not None
    return next(condition.status for condition in node.status.conditions or () if condition.type == "Ready")


def allocatable(node: Node) -> dict[str, str]:
    assert node.status is not None
    return {name: str(count) for name, count in (node.status.allocatable or {}).items() if "/" in name}
