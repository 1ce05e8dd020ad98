"""A container's environment as declared by its pod: values with references, fields of the pod, ConfigMaps, Secrets.

`ConfigSource` provides ConfigMaps and Secrets: from the store of an embedded cluster, or from another API server. The
kubelet adds the variables of devices, overridden by the declared variables.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from plugwright import quantity
from plugwright.apiserver.store import Object, ObjectKey, ObjectReader
from plugwright.cluster.nodes.restarts import containers_of
from plugwright.errors import ContainerConfigError
from plugwright.kubelet.expansion import expand_references

__all__ = [
    "ConfigSource",
    "PodFacts",
    "StoreConfigSource",
    "container_environment",
    "decoded_data",
    "field_text",
    "resource_text",
]

_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_GO_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class ConfigSource(Protocol):
    """ConfigMaps and Secrets by namespace and name; None if one does not exist."""

    async def config_map(self, namespace: str, name: str) -> Object | None: ...

    async def secret(self, namespace: str, name: str) -> Object | None: ...


@dataclass(frozen=True, slots=True)
class StoreConfigSource:
    """The ConfigMaps and Secrets of an embedded cluster."""

    store: ObjectReader

    async def config_map(self, namespace: str, name: str) -> Object | None:
        return self.store.get(ObjectKey("configmaps", namespace, name))

    async def secret(self, namespace: str, name: str) -> Object | None:
        return self.store.get(ObjectKey("secrets", namespace, name))


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The targets of references in a pod: fields, addresses, the node's allocatable, ConfigMaps and Secrets."""

    stored: Object
    host_address: str
    pod_address: str
    allocatable: Mapping[str, str]
    source: ConfigSource

    @property
    def namespace(self) -> str:
        return str(self.stored["metadata"]["namespace"])

    async def config_map(self, reference: Object) -> Object | None:
        """The ConfigMap; None if it is missing and optional. Raises `ContainerConfigError`."""
        name = str(reference.get("name") or "")
        found = await self.source.config_map(self.namespace, name)
        if found is None and not reference.get("optional"):
            raise ContainerConfigError(f'configmap "{name}" not found')
        return found

    async def secret(self, reference: Object) -> Mapping[str, bytes] | None:
        """The data of a Secret; otherwise like `config_map`."""
        name = str(reference.get("name") or reference.get("secretName") or "")
        found = await self.source.secret(self.namespace, name)
        if found is None and not reference.get("optional"):
            raise ContainerConfigError(f'secret "{name}" not found')
        return None if found is None else decoded_data(found.get("data") or {})


def decoded_data(data: Mapping[str, str]) -> dict[str, bytes]:
    """The decoded values; invalid base64, which the API server rejects, becomes empty."""
    return {key: _decoded(text or "") for key, text in data.items()}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


async def container_environment(facts: PodFacts, container: Object) -> dict[str, str]:
    """The variables in the order of their declaration; raises `ContainerConfigError` for a missing reference."""
    environment: dict[str, str] = {}
    for entry in container.get("envFrom") or ():
        prefix = str(entry.get("prefix") or "")
        for key, value in sorted((await _all_of(facts, entry)).items()):
            environment[prefix + key] = value
    for variable in container.get("env") or ():
        value = str(variable.get("value") or "")
        if value or not variable.get("valueFrom"):
            environment[variable["name"]] = expand_references(value, environment)
        elif (found := await _value_from(facts, container, variable["valueFrom"])) is not None:
            environment[variable["name"]] = found
    return environment


async def _all_of(facts: PodFacts, entry: Object) -> Mapping[str, str]:
    if entry.get("configMapRef"):
        return (await facts.config_map(entry["configMapRef"]) or {}).get("data") or {}
    if entry.get("secretRef"):
        return {key: _text(value) for key, value in (await facts.secret(entry["secretRef"]) or {}).items()}
    return {}


async def _value_from(facts: PodFacts, container: Object, source: Object) -> str | None:
    """The value; None if an optional key is missing, in which case the variable is not set."""
    if reference := source.get("fieldRef"):
        return field_text(facts, str(reference.get("fieldPath") or ""))
    if reference := source.get("resourceFieldRef"):
        return resource_text(facts, container, reference)
    if reference := source.get("configMapKeyRef"):
        config_map = await facts.config_map(reference)
        data = None if config_map is None else config_map.get("data") or {}
        return _key_of(data, reference, f"ConfigMap {facts.namespace}/{reference['name']}")
    if reference := source.get("secretKeyRef"):
        secret = await facts.secret(reference)
        data = None if secret is None else {key: _text(value) for key, value in secret.items()}
        return _key_of(data, reference, f"Secret {facts.namespace}/{reference['name']}")
    raise ContainerConfigError(f"plugwright does not emulate env from {', '.join(sorted(source))}")


def _key_of(data: Mapping[str, str] | None, reference: Object, described: str) -> str | None:
    key = str(reference.get("key") or "")
    if data is not None and key in data:
        return data[key]
    if reference.get("optional"):
        return None
    raise ContainerConfigError(f"couldn't find key {key} in {described}")


def field_text(facts: PodFacts, path: str) -> str:
    """A field of the pod, by a `fieldPath` of the downward API."""
    metadata, spec = facts.stored["metadata"], facts.stored["spec"]
    fields = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName"),
        "status.hostIP": facts.host_address,
        "status.hostIPs": facts.host_address,
        "status.podIP": facts.pod_address,
        "status.podIPs": facts.pod_address,
    }
    if path in fields:
        return str(fields[path] or "")
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{str(value).translate(_GO_ESCAPES)}"' for key, value in sorted(entries.items()))
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(subscript[1].partition(".")[2]) or {}).get(subscript[2]) or "")
    raise ContainerConfigError(f"field label not supported: {path}")


def resource_text(facts: PodFacts, container: Object, reference: Object) -> str:
    """A limit or a request in units of the divisor, rounded up; without a limit, the node's allocatable."""
    name = reference.get("containerName")
    if name:
        containers = containers_of(facts.stored["spec"])
        container = next((entry for entry in containers if entry["name"] == name), container)
    part, _, resource = str(reference.get("resource") or "").partition(".")
    if part not in ("limits", "requests") or not resource:
        raise ContainerConfigError(f"unsupported container resource : {reference.get('resource')}")
    amounts = (container.get("resources") or {}).get(part) or {}
    default = facts.allocatable.get(resource, "0") if part == "limits" else "0"
    amount = quantity.zero_if_invalid(amounts.get(resource, default))
    divisor = quantity.zero_if_invalid(reference.get("divisor") or "1") or quantity.parse("1")
    return str(math.ceil(amount / divisor))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
