"""The common part of `why`, `fit` and `lint`: access to a cluster, files and NodeReports."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import yaml
from msgspec.structs import replace

from plugwright.cli.completing import complete_namespace
from plugwright.cli.output import output_option
from plugwright.errors import ConfigError
from plugwright.explain.reading import read_world
from plugwright.explain.world import ApiObject, World
from plugwright.fleet.daemons import SELECTOR, DaemonChoice
from plugwright.fleet.world_reports import with_node_reports
from plugwright.kube import kubeconfig as kubeconfigs
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient

__all__ = [
    "AskedCluster", "AskedReports", "cluster_options", "read_objects", "report_options", "wanted_namespace",
    "with_reports",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_MOST_BYTES = 4 << 20  # of a file
_MOST_OBJECTS = 1000
_CLUSTER = (
    click.option(
        "-n", "--namespace", shell_complete=complete_namespace,
        help="Namespace of the objects.  [default: that of the context]",
    ),
    click.option("--kubeconfig", type=_PATH, help="Kubeconfig.  [default: as kubectl; in a pod, its service account]"),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    output_option(),
)  # fmt: skip
_ALL_NAMESPACES = click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
_REPORTS = (
    click.option(
        "--report", "reports", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True,
        help="NodeReport of a node whose daemon cannot be reached (`plugwright status -o json`). May be repeated.",
    ),
    click.option("--no-daemons", is_flag=True, help="Do not ask the nodes' daemons for their NodeReports (by exec)."),
    click.option("--selector", metavar="LABELS", default=SELECTOR, show_default=True,
                 help="Labels of the daemons' pods."),
    click.option("--daemon-namespace", metavar="NAME", help="Namespace of the daemons' pods.  [default: any]"),
)  # fmt: skip


class AskedCluster(msgspec.Struct, frozen=True):
    """The flags that choose a cluster and a namespace; the namespace is empty for all."""

    namespace: str
    kubeconfig: Path | None = None
    context: str | None = None

    @property
    def access(self) -> ClusterAccess:
        return ClusterAccess.choose(self.kubeconfig, self.context)

    def world(self) -> World:
        with BlockingClient(self.access) as client:
            return read_world(client, self.namespace)


class AskedReports(msgspec.Struct, frozen=True):
    """The flags that choose NodeReports: files and daemons."""

    files: Mapping[str, ApiObject] = {}
    asks_daemons: bool = True
    selector: str = SELECTOR
    daemon_namespace: str | None = None


def cluster_options(*, all_namespaces: bool = False) -> Callable[[F], F]:
    """Passes the cluster to the command as `cluster`, and `output`."""

    def decorated(command: F) -> F:
        @wraps(command)
        def call(
            *arguments: Any, namespace: str | None, kubeconfig: Path | None, context: str | None,
            all_namespaces: bool = False, **values: Any,
        ) -> Any:  # fmt: skip
            if namespace and all_namespaces:
                raise click.UsageError("give --namespace or --all-namespaces, not both")
            wanted = "" if all_namespaces else wanted_namespace(namespace, kubeconfig, context)
            return command(*arguments, cluster=AskedCluster(wanted, kubeconfig, context), **values)

        decorating: Any = call
        for option in reversed((*_CLUSTER, *([_ALL_NAMESPACES] if all_namespaces else []))):
            decorating = option(decorating)
        return decorating  # type: ignore[no-any-return]

    return decorated


def report_options(command: F) -> F:
    """Passes the flags that choose NodeReports to the command as `reports`."""

    @wraps(command)
    def call(
        *arguments: Any, reports: tuple[Path, ...], no_daemons: bool, selector: str, daemon_namespace: str | None,
        **values: Any,
    ) -> Any:  # fmt: skip
        asked = AskedReports(read_reports(reports), not no_daemons, selector, daemon_namespace)
        return command(*arguments, reports=asked, **values)

    decorating: Any = call
    for option in reversed(_REPORTS):
        decorating = option(decorating)
    return decorating  # type: ignore[no-any-return]


def with_reports(world: World, cluster: AskedCluster, reports: AskedReports, pods: Iterable[ApiObject]) -> World:
    """The world with the NodeReports of files, and of the daemons on the nodes that could run one of the pods."""
    world = replace(world, reports=reports.files, sources=dict.fromkeys(reports.files, "file"))
    if not reports.asks_daemons:
        return world
    choice = DaemonChoice(None, "", cluster.kubeconfig, cluster.context, reports.selector, reports.daemon_namespace)
    return with_node_reports(world, cluster.access, choice, pods)


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
    """The objects of a YAML or JSON file, including those in lists; `-` is the standard input."""
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
    """The namespace of the context unless another is given, as in kubectl."""
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
