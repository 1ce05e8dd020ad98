"""The kubeconfig files that kubectl would read, merged into one document, and the selection of one context.

Files are merged as kubectl does it: the first file to define a cluster, context or user wins, and relative paths are
relative to the file that they stand in.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from plugwright.errors import ConfigError

__all__ = ["find_files", "load", "proxy_url", "select_context"]

_Document = dict[str, object]
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_LISTS = ("clusters", "contexts", "users")
_V1, _V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


def find_files(kubeconfig: Path | None, environment: Mapping[str, str], home: Path) -> list[Path]:
    """The files to read, none where there is no kubeconfig; raises `ConfigError` if none of the named ones exists."""
    if kubeconfig:
        return _existing([kubeconfig])
    if environment.get("KUBECONFIG"):
        return _existing([Path(name) for name in environment["KUBECONFIG"].split(":") if name])
    default = home / ".kube" / "config"
    return [default] if default.exists() else []


def load(paths: Sequence[Path]) -> _Document:
    """One document of all files, with clusters, contexts and users as mappings by name."""
    merged: dict[str, dict[str, _Document]] = {key: {} for key in _LISTS}
    current = ""
    for path in paths:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for key in _LISTS:
            for name, value in _by_name(document.get(key), key, path):
                merged[key].setdefault(name, value)
    return {**merged, "current-context": current}


def select_context(document: Mapping[str, object], context: str | None) -> _Document:
    """A kubeconfig with one context, `context` or the current one, and only its cluster and its user."""
    contexts, clusters, users = (_mapping(document.get(key)) for key in ("contexts", "clusters", "users"))
    name = context or str(document.get("current-context") or "")
    if not name:
        raise ConfigError(f"the kubeconfig has no current context; choose one with --context: {_list(contexts)}")
    if name not in contexts:
        raise ConfigError(f"the kubeconfig has no context {name!r}, only: {_list(contexts)}")
    selected = _mapping(contexts[name])
    cluster, user = str(selected.get("cluster") or ""), str(selected.get("user") or "")
    if cluster not in clusters or (user and user not in users):
        raise ConfigError(f"context {name!r} of the kubeconfig must name a cluster and a user that the kubeconfig has")
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": cluster, "user": user or "nobody"}}],
        "clusters": [{"name": cluster, "cluster": clusters[cluster]}],
        "users": [{"name": user or "nobody", "user": users.get(user) or {}}],
    }


def proxy_url(document: Mapping[str, object]) -> str | None:
    """The proxy-url of the cluster in a document of `select_context`."""
    clusters = document["clusters"]
    assert isinstance(clusters, list)
    url = clusters[0]["cluster"].get("proxy-url")
    return str(url) if url else None


def _existing(paths: list[Path]) -> list[Path]:
    existing = [path for path in paths if path.exists()]
    if not existing:
        raise ConfigError(f"there is no kubeconfig {', '.join(map(str, paths))}")
    return existing


def _read(path: Path) -> _Document:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a kubeconfig: a mapping is needed")
    return document


def _by_name(entries: object, key: str, path: Path) -> list[tuple[str, _Document]]:
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "name" in entry for entry in entries):
        raise ConfigError(f"{path} is not a kubeconfig: {key} must be a list of entries with a name")
    inner, directory = key.removesuffix("s"), path.absolute().parent
    return [(str(entry["name"]), _with_absolute_paths(_mapping(entry.get(inner)), directory)) for entry in entries]


def _with_absolute_paths(entry: Mapping[str, object], directory: Path) -> _Document:
    """The entry without empty members, which kubectl treats as absent."""
    absolute = {name: content for name, content in entry.items() if content not in (None, "")}
    for name in _PATHS:
        if name in absolute:
            absolute[name] = str(directory / str(absolute[name]))
    if "exec" in absolute:
        absolute["exec"] = _credential_command(_mapping(absolute["exec"]), directory)
    return absolute


def _credential_command(command: Mapping[str, object], directory: Path) -> _Document:
    """As v1beta1, which answers like v1 and which lightkube accepts, with the KUBERNETES_EXEC_INFO it does not set."""
    version = command.get("apiVersion")
    request = {"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": False}}
    variables = command.get("env")
    environment = [
        *(variables if isinstance(variables, list) else []),
        {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(request)},
    ]
    name = str(command.get("command") or "")
    program = str(directory / name) if "/" in name else name
    return {**command, "command": program, "apiVersion": _V1BETA1 if version == _V1 else version, "env": environment}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(map(str, names)) or "none"
