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

__all__ = ["Place", "Up", "allocatable", "client", "pod", "ready", "until_node"]


class Place:
    """Where temporary clusters of this test have their default place, and commands look for them."""

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
            facts = json.loads(await process.out.until("server"))
            yield Up(process, facts)
        assert "Traceback" not in "\n".join(process.err.all)


class Up:
    def __init__(self, process: Running, facts: dict[str, Any]) -> None:
        self.process, self.facts = process, facts

    @property
    def kubeconfig(self) -> Path:
        return Path(self.facts["kubeconfig"])

    @property
    def client(self) -> lightkube.Client:
        return client(self.kubeconfig)

    def socket(self, node: str = "node-1") -> str:
        return str(self.facts["nodes"][node]["control_socket"])

    def devices(self, pod: str) -> list[str]:
        """What the container of a pod was given, as its log says it."""
        with self.client as api:
            return [line for line in api.log(pod, namespace="default") if "VISIBLE" in line]


def client(kubeconfig: Path) -> lightkube.Client:
    return lightkube.Client(lightkube.KubeConfig.from_file(kubeconfig))


def pod(name: str, **limits: str) -> Pod:
    wants = {f"mock/{resource}": count for resource, count in limits.items()}
    main = Container(name="main", image="demo", resources=ResourceRequirements(limits=wants))
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(containers=[main]))


def until_node(api: lightkube.Client, name: str, fact: Callable[[Node], bool]) -> Node:
    """The first state of the node in which `fact` holds; the server ends a watch after a minute."""
    found = api.watch(Node, fields={"metadata.name": name}, server_timeout=30)
    return next(node for _, node in found if fact(node))


def ready(node: Node) -> str:
    assert node.status is not None
    return next(each.status for each in node.status.conditions or () if each.type == "Ready")


def allocatable(node: Node) -> dict[str, str]:
    assert node.status is not None
    return {name: str(count) for name, count in (node.status.allocatable or {}).items() if "/" in name}
