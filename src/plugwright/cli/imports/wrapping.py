"""What stands around a peer's file in a cluster: ConfigMaps, and the manifests that start the peer.

Finds the file, the flags and the variables in them. What they mean is the business of the format's own module.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from plugwright.cli.imports.values import Value
from plugwright.errors import ConfigError

__all__ = ["Found", "unwrap"]

_PODS = {
    "Pod": ("spec",),
    "DaemonSet": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
}


@dataclass(slots=True)
class Found:
    """The files of a peer by name, still texts where a ConfigMap holds them, and the command lines beside them."""

    files: dict[str, Value] = field(default_factory=dict)
    flags: list[Value] = field(default_factory=list)
    environment: dict[str, Value] = field(default_factory=dict)

    def file(self, key: str) -> Value | None:
        """The one file, or the one named `key`."""
        if key:
            if key not in self.files:
                raise ConfigError(f"there is no file {key!r}, only: {', '.join(sorted(self.files)) or 'none'}")
            return self._read(key)
        if len(self.files) > 1:
            raise ConfigError(f"several files in there, say which with --key: {', '.join(sorted(self.files))}")
        return next((self._read(name) for name in self.files), None)

    def _read(self, name: str) -> Value:
        return self.files[name].inner() if name else self.files[name]


def unwrap(documents: list[Value]) -> Found:
    found = Found()
    for document in documents:
        for member in _members(document):
            _take(member, found)
    return found


def _take(document: Value, found: Found) -> None:
    kind = _kind(document)
    if not kind:
        if "" in found.files:
            raise document.error("a second file after '---': give them one by one")
        found.files[""] = document
    elif kind == "ConfigMap":
        for name, text in _data(document):
            if name in found.files:
                raise text.error(f"a second file of the name {name!r}")
            found.files[name] = text
    elif kind in _PODS:
        for container in _containers(document, _PODS[kind]):
            _take_container(container, found)


def _members(document: Value) -> Iterator[Value]:
    """`kubectl get -o yaml` makes a List of several objects."""
    if _kind(document).endswith("List"):
        items = dict(document.members()).get("items")
        for item in items.items() if items else ():
            yield from _members(item)
    else:
        yield document


def _kind(document: Value) -> str:
    """The kind of a Kubernetes object, "" of anything else."""
    members = dict(document.members()) if document.is_mapping else {}
    return members["kind"].raw if "kind" in members and "apiVersion" in members else ""


def _data(document: Value) -> Iterator[tuple[str, Value]]:
    data = dict(document.members()).get("data")
    for name, text in data.members() if data and not data.is_null else ():
        if text.text().strip():
            yield name, text


def _containers(document: Value, path: tuple[str, ...]) -> list[Value]:
    spec: Value | None = document
    for step in (*path, "containers"):
        spec = dict(spec.members()).get(step) if spec and spec.is_mapping else None
    return spec.items() if spec else []


def _take_container(container: Value, found: Found) -> None:
    members = dict(container.members())
    for key in ("command", "args"):
        found.flags.extend(members[key].items() if key in members else [])
    for variable in members["env"].items() if "env" in members else []:
        pair = dict(variable.members())
        if "name" in pair and "value" in pair:
            found.environment[pair["name"].raw] = pair["value"]
