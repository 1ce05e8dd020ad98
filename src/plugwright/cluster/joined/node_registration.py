"""The Node objects of joined nodes: created or found again, never another owner's, and deleted at the end.

Every node of ours has the label `plugwright.dev/joined-by` with the id of its state directory.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import LEASES, NODES, PODS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.joined.outbox import url_of
from plugwright.cluster.nodes import node_status
from plugwright.cluster.nodes.node_status import NodeIdentity, PluginResources
from plugwright.errors import ClusterError, MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.api_client import ApiClient
from plugwright.kubelet.versions import nearest

__all__ = ["OWNER_LABEL", "TAINT", "NodeRegistration", "server_version"]

logger = logging.getLogger(__name__)

OWNER_LABEL = "plugwright.dev/joined-by"
TAINT = {"key": "plugwright.dev/emulated", "effect": "NoSchedule"}
_LEASES_NAMESPACE = "kube-node-lease"
_VERSION = re.compile(r"v(\d+\.\d+\.\d+)")
_LEAVE_OBJECT = 0.02  # additional seconds for each object deleted at the end


async def server_version(api: ApiClient) -> str:
    """The release of the server, as 1.36.4."""
    answer = await api.get("/version")
    found = _VERSION.match(str(answer.get("gitVersion") or ""))
    if found is None:
        raise ClusterError(f"{api.url} must say which Kubernetes it is, got {answer.get('gitVersion')!r}")
    if nearest(found[1]) != found[1]:
        extra = {"server": found[1], "kubelet": nearest(found[1])}
        logger.warning(
            "API server has a version that plugwright does not know, its nodes have the nearest", extra=extra
        )
    return found[1]


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """`owner` is the id of the state; `leave_limit` is the time limit in seconds for removing a few nodes."""

    api: ApiClient
    owner: str
    leave_limit: float = 30.0

    async def register(self, identities: Sequence[NodeIdentity]) -> list[Object]:
        """Registers the Node object of each; raises before anything is created if a name is taken."""
        found = await self._existing({identity.name for identity in identities})
        for name, node in sorted(found.items()):
            self._check_owner(name, node)
        created: list[Object] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for identity in identities:
                    if identity.name not in found:
                        tasks.create_task(self._create(identity, created))
        except BaseExceptionGroup as group:
            await self.leave(created, ())
            raise group.exceptions[0] from None
        except BaseException:
            await asyncio.shield(self.leave(created, ()))
            raise
        return [*found.values(), *created]

    async def leave(self, nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
        """Deletes Node objects with their leases, and the pods bound to them; returns the remaining nodes.

        Nodes are deleted first, to keep DaemonSets from creating new pods on them. The server's garbage collectors
        remove the remaining leases and pods, because their node is gone.
        """
        nodes, pods = list(nodes), list(pods)
        left = {_name(node) for node in nodes}
        with suppress(TimeoutError):
            async with asyncio.timeout(self.leave_limit + _LEAVE_OBJECT * (len(nodes) + len(pods))):
                await self._delete_all([(ResourcePath(NODES, "", _name(node)), _uid(node)) for node in nodes], left)
                leases = [(ResourcePath(LEASES, _LEASES_NAMESPACE, _name(node)), "") for node in nodes]
                await self._delete_all(leases, set())
                found = [(ResourcePath(PODS, pod["metadata"]["namespace"], _name(pod)), _uid(pod)) for pod in pods]
                await self._delete_all(found, set())
        return sorted(left)

    async def existing(self) -> list[Object]:
        """The existing nodes of this owner."""
        nodes, _ = await self.api.list(url_of(ResourcePath(NODES, "")), labelSelector=f"{OWNER_LABEL}={self.owner}")
        return nodes

    async def pods(self, nodes: Iterable[Object]) -> list[Object]:
        """The pods bound to these nodes."""
        names = {_name(node) for node in nodes}
        pods, _ = await self.api.list(url_of(ResourcePath(PODS, "")), fieldSelector="spec.nodeName!=")
        return [pod for pod in pods if pod["spec"].get("nodeName") in names]

    async def _existing(self, names: set[str]) -> Mapping[str, Object]:
        nodes, _ = await self.api.list(url_of(ResourcePath(NODES, "")))
        return {_name(node): node for node in nodes if _name(node) in names}

    def _check_owner(self, name: str, node: Object) -> None:
        owner = (node["metadata"].get("labels") or {}).get(OWNER_LABEL)
        if owner != self.owner:
            whose = f"belongs to the nodes joined by {owner}" if owner else "is not a node of plugwright"
            raise ClusterError(f"node {name} already exists and {whose}, so it is not changed: give ours another name")

    async def _create(self, identity: NodeIdentity, created: list[Object]) -> None:
        node = node_status.new_node(identity, PluginResources({}), clock.timestamp(clock.now()))
        node["metadata"]["labels"][OWNER_LABEL] = self.owner
        try:
            created.append(
                await self.api.create(
                    url_of(ResourcePath(NODES, "")), {"apiVersion": NODES.api_version, "kind": NODES.name, **node}
                )
            )
        except PeerRefused as error:
            raise ClusterError(f"cannot create node {identity.name}: {error}") from error

    async def _delete_all(self, objects: Sequence[tuple[ResourcePath, str]], left: set[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for path, uid in objects:
                tasks.create_task(self._delete(path, uid, left))

    async def _delete(self, path: ResourcePath, uid: str, left: set[str]) -> None:
        """Deletes exactly this object; it is not a failure if the object was deleted or replaced."""
        try:
            await self.api.delete(url_of(path), uid, grace=0)
        except PeerRefused as error:
            if error.code not in ("NotFound", "Conflict"):
                return
        except (PeerGone, MalformedMessage):
            return
        left.discard(path.name)


def _name(content: Object) -> str:
    return str(content["metadata"]["name"])


def _uid(content: Object) -> str:
    return str(content["metadata"]["uid"])
