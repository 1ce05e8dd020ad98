"""Which cluster, and as whom: the kubeconfig files that kubectl would read, as one document with one context.

Files are merged as kubectl does it: the first to name something wins, and relative paths are relative to their file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from plugwright.errors import ConfigError

__all__ = ["chosen", "files", "load", "proxy"]

_Document = dict[str, object]
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_KINDS = ("clusters", "contexts", "users")
_V1, _V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


def files(given: Path | None, environment: Mapping[str, str], home: Path) -> list[Path]:
    """Those to read; none where there is no kubeconfig. Files that are named but absent are an error."""
    if given:
        return _existing([given])
    if environment.get("KUBECONFIG"):
        return _existing([Path(name) for name in environment["KUBECONFIG"].split(":") if name])
    default = home / ".kube" / "config"
    return [default] if default.exists() else []


def load(paths: Sequence[Path]) -> _Document:
    merged: dict[str, dict[str, _Document]] = {kind: {} for kind in _KINDS}
    current = ""
    for path in paths:
        document = _parsed(path)
        current = current or str(document.get("current-context") or "")
        for kind in _KINDS:
            for name, value in _named(document.get(kind), kind, path):
                merged[kind].setdefault(name, value)
    return {**merged, "current-context": current}


def chosen(document: Mapping[str, object], context: str | None) -> _Document:
    """The one context, with only the cluster and the user that it names."""
    contexts, clusters, users = (_mapping(document.get(kind)) for kind in ("contexts", "clusters", "users"))
    name = context or str(document.get("current-context") or "")
    if not name:
        raise ConfigError(f"the kubeconfig has no current context; choose one with --context: {_list(contexts)}")
    if name not in contexts:
        raise ConfigError(f"the kubeconfig has no context {name!r}, only: {_list(contexts)}")
    place = _mapping(contexts[name])
    cluster, user = str(place.get("cluster") or ""), str(place.get("user") or "")
    if cluster not in clusters or (user and user not in users):
        raise ConfigError(f"context {name!r} of the kubeconfig names a cluster or a user that it does not have")
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": cluster, "user": user or "nobody"}}],
        "clusters": [{"name": cluster, "cluster": clusters[cluster]}],
        "users": [{"name": user or "nobody", "user": users.get(user) or {}}],
    }


def proxy(document: Mapping[str, object]) -> str | None:
    """What the one cluster of a `chosen` document is reached through, if anything."""
    clusters = document["clusters"]
    assert isinstance(clusters, list)
    through = clusters[0]["cluster"].get("proxy-url")
    return str(through) if through else None


def _existing(paths: list[Path]) -> list[Path]:
    found = [path for path in paths if path.exists()]
    if not found:
        raise ConfigError(f"there is no kubeconfig {', '.join(map(str, paths))}")
    return found


def _parsed(path: Path) -> _Document:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a kubeconfig")
    return document


def _named(entries: object, kind: str, path: Path) -> list[tuple[str, _Document]]:
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "name" in entry for entry in entries):
        raise ConfigError(f"{path} is not a kubeconfig: its {kind} are no list of names")
    inner = kind.removesuffix("s")
    return [(str(entry["name"]), _settled(_mapping(entry.get(inner)), path.absolute().parent)) for entry in entries]


def _settled(value: Mapping[str, object], directory: Path) -> _Document:
    settled = {name: content for name, content in value.items() if content not in (None, "")}
    for name in _PATHS:
        if name in settled:
            settled[name] = str(directory / str(settled[name]))
    if "exec" in settled:
        settled["exec"] = _credential_command(_mapping(settled["exec"]), directory)
    return settled


def _credential_command(command: Mapping[str, object], directory: Path) -> _Document:
    """Both versions answer alike, but lightkube refuses v1; and it does not tell the command what is asked of it."""
    version = command.get("apiVersion")
    asked = {"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": False}}
    given = command.get("env")
    told = [*(given if isinstance(given, list) else []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(asked)}]
    name = str(command.get("command") or "")
    place = str(directory / name) if "/" in name else name
    return {**command, "command": place, "apiVersion": _V1BETA1 if version == _V1 else version, "env": told}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(map(str, names)) or "none"
