"""`kubectl exec` and `attach` in an embedded cluster: the pod, its container and its node for a command."""

from collections.abc import Mapping

from msgspec import structs

from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.remote_commands import CommandOptions, CommandStreams
from plugwright.apiserver.store import Object, ObjectReader
from plugwright.cluster.nodes.node import EmulatedNode
from plugwright.cluster.nodes.restarts import containers_of

__all__ = ["PodCommands"]

_DEFAULT = "kubectl.kubernetes.io/default-container"
_NO_INPUT = (
    "plugwright attaches no input to a container: use `kubectl exec -it`, or `plugwright join` with a real API server"
)


class PodCommands:
    """Of nodes that run containers as processes."""

    def __init__(self, store: ObjectReader, nodes: Mapping[str, EmulatedNode]) -> None:
        self._store, self._nodes = store, nodes

    def check(self, path: ResourcePath, options: CommandOptions) -> None:
        pod = self._store.require(path.key)
        self._container(pod, options)
        self._node(pod)
        if path.subresource == "exec" and not options.command:
            raise bad_request("you must specify at least one command for the container")
        if path.subresource == "attach" and options.stdin:
            raise bad_request(_NO_INPUT)

    async def execute(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        pod = self._store.require(path.key)
        named = structs.replace(options, container=self._container(pod, options))
        return await self._node(pod).execute(pod, named, streams)

    async def attach(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        """The output of the container from now on, until it ends."""
        pod = self._store.require(path.key)
        log = self._node(pod).read_log(pod, self._container(pod, options), LogOptions(follow=True, tail=0))
        async for piece in log:
            await streams.write(piece)
        return 0

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
            raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
        return str(name)
