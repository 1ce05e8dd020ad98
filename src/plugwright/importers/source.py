"""Input and output of the importers, and the ConfigMaps and manifests that hold another plugin's configuration.

`read_manifests` finds the file, the flags and the variables; their meaning is left to the module of the format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.importers.values import ConfigValue, ImportNote

__all__ = ["ForeignConfig", "ImportResult", "ImportedResource", "ManifestContents", "read_manifests"]

_POD_SPECS = {
    "Pod": ("spec",),
    "DaemonSet": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
}


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """Another plugin's configuration: its file, flags and variables, and the options of `plugwright import`."""

    root: ConfigValue | None
    domain: str = ""
    flags: tuple[ConfigValue, ...] = ()
    environment: Mapping[str, ConfigValue] = field(default_factory=dict)
    dangerous: bool = False  # --dangerous: import devices that give control of the node too
    names: tuple[str, ...] | None = None  # the names below /dev, if --dev was given


@dataclass(frozen=True, slots=True)
class ImportedResource:
    """One resource of our file, and the notes about it."""

    content: dict[str, object]
    notes: tuple[ImportNote, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Another plugin's configuration as resources of ours; `notes` are about the file as a whole."""

    resources: tuple[ImportedResource, ...]
    notes: tuple[ImportNote, ...] = ()


@dataclass(slots=True)
class ManifestContents:
    """Files by name (strings if a ConfigMap holds them), and the flags and variables of the containers."""

    files: dict[str, ConfigValue] = field(default_factory=dict)
    flags: list[ConfigValue] = field(default_factory=list)
    environment: dict[str, ConfigValue] = field(default_factory=dict)

    def file(self, key: str) -> ConfigValue | None:
        """The file named `key`, or the only file if `key` is empty."""
        names = ", ".join(sorted(self.files)) or "none"
        if key and key not in self.files:
            raise ConfigError(f"there is no file {key!r}, only: {names}")
        if not key and len(self.files) > 1:
            raise ConfigError(f"there are several files; choose one with --key: {names}")
        for name in [key] if key else self.files:
            return self.files[name].embedded() if name else self.files[name]
        return None


def read_manifests(documents: list[ConfigValue]) -> ManifestContents:
    """The contents of ConfigMaps and pod templates; a document that is not a Kubernetes object is the file itself."""
    contents = ManifestContents()
    for document in documents:
        for member in _objects(document):
            _add_object(member, contents)
    return contents


def _objects(document: ConfigValue) -> Iterator[ConfigValue]:
    """`kubectl get -o yaml` prints several objects as a List."""
    if _kind(document).endswith("List"):
        items = dict(document.members()).get("items")
        for item in items.items() if items else ():
            yield from _objects(item)
    else:
        yield document


def _add_object(document: ConfigValue, contents: ManifestContents) -> None:
    kind = _kind(document)
    if not kind:
        if "" in contents.files:
            raise document.error("a second file after '---'; import them one by one")
        contents.files[""] = document
    elif kind == "ConfigMap":
        for name, text in _config_map_files(document):
            if name in contents.files:
                raise text.error(f"a second file named {name!r}")
            contents.files[name] = text
    elif kind in _POD_SPECS:
        for container in _containers(document, _POD_SPECS[kind]):
            _add_container(container, contents)


def _kind(document: ConfigValue) -> str:
    """The kind of a Kubernetes object, "" for any other document."""
    members = dict(document.members()) if document.is_mapping else {}
    return members["kind"].raw if "kind" in members and "apiVersion" in members else ""


def _config_map_files(document: ConfigValue) -> Iterator[tuple[str, ConfigValue]]:
    data = dict(document.members()).get("data")
    for name, text in data.members() if data and not data.is_null else ():
        if text.string().strip():
            yield name, text


def _containers(document: ConfigValue, path: tuple[str, ...]) -> list[ConfigValue]:
    spec: ConfigValue | None = document
    for step in (*path, "containers"):
        spec = dict(spec.members()).get(step) if spec and spec.is_mapping else None
    return spec.items() if spec else []


def _add_container(container: ConfigValue, contents: ManifestContents) -> None:
    members = dict(container.members())
    for key in ("command", "args"):
        contents.flags.extend(members[key].items() if key in members else [])
    for variable in members["env"].items() if "env" in members else []:
        pair = dict(variable.members())
        if "name" in pair and "value" in pair:
            contents.environment[pair["name"].raw] = pair["value"]
