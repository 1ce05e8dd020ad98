"""The API server's objects read on demand by a joined node: claims and slices, ConfigMaps and Secrets of pods."""

from contextlib import suppress

from plugwright.apiserver.kinds import CONFIG_MAPS, RESOURCE_CLAIMS, RESOURCE_SLICES, SECRETS, Kind
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.joined.outbox import url_of
from plugwright.errors import ContainerConfigError, KubeletError, MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.api_client import ApiClient

__all__ = ["RemoteConfigSource", "RemoteKubeClient"]


class RemoteKubeClient:
    """A `KubeClient` of the kubelet, for one node."""

    def __init__(self, api: ApiClient, node: str) -> None:
        self._api, self._node = api, node

    async def claim(self, namespace: str, name: str) -> Object:
        try:
            return await self._api.get(url_of(ResourcePath(RESOURCE_CLAIMS, namespace, name)))
        except (PeerGone, PeerRefused, MalformedMessage) as error:
            raise KubeletError(f"fetch ResourceClaim {name}: {error}") from error

    async def delete_slices(self, driver: str = "") -> None:
        fields = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        try:
            slices, _ = await self._api.list(url_of(ResourcePath(RESOURCE_SLICES, "")), fieldSelector=fields)
            for found in slices:
                with suppress(PeerRefused):  # deleted in the meantime
                    await self._api.delete(url_of(ResourcePath(RESOURCE_SLICES, "", found["metadata"]["name"])))
        except PeerRefused as error:
            if error.code != "NotFound":  # a server without this version of the API has no slices either
                raise KubeletError(str(error)) from error
        except (PeerGone, MalformedMessage) as error:
            raise KubeletError(str(error)) from error


class RemoteConfigSource:
    """A `ConfigSource` of pods' environments and volumes."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def config_map(self, namespace: str, name: str) -> Object | None:
        return await self._get(CONFIG_MAPS, namespace, name)

    async def secret(self, namespace: str, name: str) -> Object | None:
        return await self._get(SECRETS, namespace, name)

    async def _get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self._api.get(url_of(ResourcePath(kind, namespace, name)))
        except PeerRefused as error:
            if error.code == "NotFound":
                return None
            raise ContainerConfigError(str(error)) from error
        except (PeerGone, MalformedMessage) as error:
            raise ContainerConfigError(str(error)) from error
