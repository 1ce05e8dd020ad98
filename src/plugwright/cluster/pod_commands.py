"""`kubectl exec`, `attach` and `port-forward` in an embedded cluster: the pod, its container and its node."""

import os
from collections.abc import Mapping

from msgspec import structs

from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.remote_commands import CommandOptions, CommandStreams, Connection
from plugwright.apiserver.store import Object, ObjectReader
from plugwright.cluster.nodes.node import EmulatedNode
from plugwright.cluster.nodes.restarts import containers_of

__all__ = ["PodCommands"]

_DEFAULT = "kubectl.kubernetes.io/default-container"


class PodCommands:
    """Commands for pods of nodes with container processes."""

    def __init__(self, store: ObjectReader, nodes: Mapping[str, EmulatedNode]) -> None:
        self._store, self._nodes = store, nodes

    def check(self, path: ResourcePath, options: CommandOptions) -> None:
        pod = self._store.require(path.key)
        name = self._container(pod, options)
        self._node(pod)
        if path.subresource == "exec" and not options.command:
            raise bad_request("you must specify at least one command for the container")
        if path.subresource == "attach" and options.stdin and not _has_input(pod, name):
            raise bad_request(f"container {name} takes no input, as it has no `stdin: true`: use kubectl exec -it")

    async def execute(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        pod, named = self._named(path, options)
        return await self._node(pod).execute(pod, named, streams)

    async def attach(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        """Connects to the container from now until it ends."""
        pod, named = self._named(path, options)
        await self._node(pod).attach(pod, named, streams)
        return 0

    async def connect(self, path: ResourcePath, port: int) -> Connection:
        pod = self._store.require(path.key)
        try:
            return await self._node(pod).connect(port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            text = f"error forwarding port {port} to pod {path.namespace}/{path.name}: failed to connect to localhost"
            raise bad_request(f"{text}:{port}: {reason}") from error

    def _named(self, path: ResourcePath, options: CommandOptions) -> tuple[Object, CommandOptions]:
        pod = self._store.require(path.key)
        return pod, structs.replace(options, container=self._container(pod, options))

    def _node(self, pod: Object) -> EmulatedNode:
        node = self._nodes.get(str(pod["spec"].get("nodeName")))
        if node is None:
            raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        return node

    def _container(self, pod: Object, options: CommandOptions) -> str:
        names = [str(container["name"]) for container in containers_of(pod["spec"])]
        annotated = (pod["metadata"].get("annotations") or {}).get(_DEFAULT)
        name = options.container or annotated or str(pod["spec"]["containers"][0]["name"])
        if name not in names:
            raise bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            phase = pod["status"]["phase"]
            raise bad_request(f"cannot connect to a container in a completed pod; current phase is {phase}")
        return str(name)


def _has_input(pod: Object, name: str) -> bool:
    return any(bool(one.get("stdin")) for one in containers_of(pod["spec"]) if one["name"] == name)
