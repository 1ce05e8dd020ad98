"""The settings with which a pod's containers are started: references, volumes, command.

The kubelet provides the settings of devices when a container starts, which are merged here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plugwright.apiserver.kinds import NODES
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.cdi_devices import with_node_cdi_devices
from plugwright.cluster.nodes.container_env import PodFacts, StoreConfigSource, container_environment
from plugwright.cluster.nodes.node_context import NodeContext
from plugwright.cluster.nodes.pod_processes import Launch
from plugwright.cluster.nodes.restarts import containers_of
from plugwright.errors import ContainerConfigError, ContainerWaiting
from plugwright.kubelet import Pod, sandbox

__all__ = ["PodConfig"]

_NO_COMMAND = (
    "no command specified: images do not exist here, so give the container a command "
    "(kubectl run NAME --image=IMAGE -- COMMAND), or the image an --entrypoint of plugwright up"
)


@dataclass(frozen=True, slots=True)
class PodConfig:
    context: NodeContext
    stored: Object
    address: str

    async def set_up_volumes(self) -> None:
        """Sets up the volumes; raises `VolumeNotMounted`."""
        await self.context.volumes.set_up(self._facts())

    async def check_references(self, pod: Pod) -> None:
        """Checks references, because the kubelet does not start a container with a missing one."""
        for container in containers_of(self.stored["spec"]):
            await self._environment(pod, container)

    async def launch(self, pod: Pod, container: Object, attempt: int, *, is_start: bool = True) -> Launch:
        """Makes the kubelet start the container, unless it runs already; raises `ContainerWaiting`."""
        name, volumes = container["name"], self.context.volumes
        environment = await self._environment(pod, container)
        command = [*self._entrypoint(container), *map(str, container.get("args") or ())]
        if not command:
            raise ContainerWaiting(name, "CreateContainerError", _NO_COMMAND)
        if is_start:
            await self.context.kubelet.restart_container(pod, name)
        kubelet = self.context.kubelet
        granted = with_node_cdi_devices(kubelet.granted(pod, name), kubelet.paths.root)
        message = volumes.termination_log(self.stored, name, attempt)
        paths = volumes.mounts(self.stored, container)
        if path := container.get("terminationMessagePath"):
            paths.append((str(message), str(path), False, sandbox.QUIET))
        reached: Mapping[str, str] = {}
        if (api := self.context.runtime.api) is not None:
            reached = api.environment()
            directory = volumes.directory(self.stored, "kube-api-access")
            paths += api.mount(self.stored, self.context.client.store, directory)
        options = replace(granted, env={**reached, **granted.env, **environment})
        return Launch(command, options, paths, str(container.get("workingDir") or ""), message)

    async def _environment(self, pod: Pod, container: Object) -> Mapping[str, str]:
        state = pod.containers[container["name"]]
        state.config_error = ""
        if not container.get("env") and not container.get("envFrom"):
            return {}
        try:
            return await container_environment(self._facts(), container)
        except ContainerConfigError as error:
            state.config_error = str(error)
            return {}

    def _entrypoint(self, container: Object) -> list[str]:
        if container.get("command"):
            return [str(part) for part in container["command"]]
        image = str(container.get("image") or "").rpartition("/")[2].partition("@")[0].partition(":")[0]
        return [*self.context.runtime.entrypoints.get(image, ())]

    def _facts(self) -> PodFacts:
        context = self.context
        node = context.client.store.get(ObjectKey(NODES.qualified, "", context.identity.name)) or {}
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        source = context.source or StoreConfigSource(context.client.store)
        return PodFacts(self.stored, context.identity.address, self.address, allocatable, source)
