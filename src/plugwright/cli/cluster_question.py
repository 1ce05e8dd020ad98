"""What `why`, `fit` and `lint` share: how they reach a cluster, and read files and NodeReports."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from plugwright.cli.output import output_option
from plugwright.errors import ConfigError
from plugwright.explain import World, read_world
from plugwright.explain.world import ApiObject
from plugwright.kube import kubeconfig as kubeconfigs
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient

__all__ = ["cluster_options", "read_objects", "read_reports", "wanted_namespace", "world_of"]

_PATH = click.Path(path_type=Path)
_MOST_BYTES = 4 << 20  # of a file
_MOST_OBJECTS = 1000
_OPTIONS = (
    click.option("-n", "--namespace", help="Namespace of the objects.  [default: that of the context]"),
    click.option("--kubeconfig", type=_PATH, help="Default: as kubectl; in a pod, its service account."),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    output_option(),
)


def cluster_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def world_of(
    kubeconfig: Path | None, context: str | None, namespace: str, reports: Mapping[str, ApiObject] | None = None
) -> World:
    with BlockingClient(ClusterAccess.choose(kubeconfig, context)) as client:
        return read_world(client, namespace, reports)


def read_reports(paths: tuple[Path, ...]) -> dict[str, ApiObject]:
    """NodeReports by node."""
    reports = {}
    for path in paths:
        try:
            document = json.loads(_content(path))
            reports[str(document["metadata"]["nodeName"])] = document
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} must be a NodeReport, got {error!r}") from error
    return reports


def read_objects(path: Path) -> list[ApiObject]:
    """The objects of a YAML or JSON file, those of lists included; `-` is the standard input."""
    objects: list[ApiObject] = []
    try:
        for document in yaml.safe_load_all(_content(path)):
            if not isinstance(document, dict):
                if document is None:
                    continue
                raise ConfigError(f"{path} must contain Kubernetes objects, got {type(document).__name__}")
            objects += document.get("items") or () if str(document.get("kind")).endswith("List") else [document]
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} must be YAML: {error}") from error
    if len(objects) > _MOST_OBJECTS:
        raise ConfigError(f"{path} must contain at most {_MOST_OBJECTS} objects, got {len(objects)}")
    for entry in objects:
        if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict) or not entry.get("kind"):
            raise ConfigError(f"{path} must contain Kubernetes objects with kind and metadata")
    return objects


def _content(path: Path) -> bytes:
    with click.open_file(str(path), "rb") as stream:
        content: bytes = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} must be at most {_MOST_BYTES} bytes")
    return content


def wanted_namespace(namespace: str | None, path: Path | None, context: str | None) -> str:
    """The namespace of the context unless one is named, as kubectl chooses it."""
    if namespace:
        return namespace
    files = kubeconfigs.find_files(path, os.environ, Path.home())
    if not files:
        return "default"
    document = kubeconfigs.load(files)
    wanted = context or document.get("current-context")
    entries = document.get("contexts")
    for entry in entries if isinstance(entries, list) else ():
        if entry.get("name") == wanted:
            return str((entry.get("context") or {}).get("namespace") or "default")
    return "default"
