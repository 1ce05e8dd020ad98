"""The kubeconfig files of kubectl, merged into one document, and the selection of one context.

Files are merged as kubectl does it: the first file to define a cluster, context or user wins, and relative paths are
relative to their file.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
import yaml

from plugwright.errors import ConfigError
from plugwright.kube.credential_plugin import CredentialPlugin, ExecEntry
from plugwright.kube.credentials import Credentials
from plugwright.system import files

__all__ = ["Cluster", "SelectedContext", "User", "find_files", "load", "select_context"]

T = TypeVar("T")
_Document = dict[str, object]
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_LISTS = ("clusters", "contexts", "users")
_EXTENSION = "client.authentication.k8s.io/exec"
_IN_HEADERS = "!#$&'*+^`|"  # characters of header names, beside those that quote() keeps anyway
_PLUGINS = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin", "oidc": "kubectl oidc-login"}


class _Extension(msgspec.Struct):
    name: str = ""
    extension: object = None


class Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[_Extension] = []

    def authority(self) -> Path | bytes | None:
        return _file_or_data("certificate-authority", self.certificate_authority, self.certificate_authority_data)

    def for_plugins(self) -> dict[str, object]:
        """The cluster as credential plugins get it: files as their content, and the extension for plugins."""
        authority = self.authority()
        content = files.read(authority) if isinstance(authority, Path) else authority
        cluster = {
            "server": self.server,
            "tls-server-name": self.tls_server_name,
            "insecure-skip-tls-verify": self.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(content).decode() if content else "",
            "proxy-url": self.proxy_url,
            "config": next((entry.extension for entry in self.extensions if entry.name == _EXTENSION), None),
        }
        return {name: value for name, value in cluster.items() if value}


class _AuthProvider(msgspec.Struct):
    name: str = ""


class User(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: ExecEntry | None = None
    auth_provider: _AuthProvider | None = None
    act_as: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}

    def impersonation(self) -> tuple[tuple[str, str], ...]:
        headers = [("Impersonate-User", self.act_as), ("Impersonate-Uid", self.as_uid)]
        headers += [("Impersonate-Group", group) for group in self.as_groups]
        for key, texts in self.as_user_extra.items():
            name = f"Impersonate-Extra-{quote(key, safe=_IN_HEADERS)}"
            headers += [(name, text) for text in texts]
        headers = [(name, text) for name, text in headers if text]
        if headers and not self.act_as:
            raise ConfigError("as-uid, as-groups and as-user-extra of the kubeconfig need as: the user to act as")
        return tuple(headers)


class SelectedContext(msgspec.Struct, frozen=True):
    """One context of a kubeconfig, with its cluster and its user."""

    name: str
    cluster: Cluster
    user: User

    def credentials(self) -> Credentials:
        """The credentials in kubectl's order: a token before user and password, both before a credential plugin."""
        cluster, user = self.cluster, self.user
        if user.auth_provider is not None:
            name = user.auth_provider.name
            plugin = _PLUGINS.get(name, "of your provider")
            raise ConfigError(
                f"auth-provider {name!r} of the kubeconfig is not supported: use the credential plugin {plugin} (exec)"
            )
        has_token = bool(user.token or user.token_file)
        if has_token and user.username:
            raise ConfigError("the kubeconfig must have a token or a username, got both")
        try:
            issuer = CredentialPlugin(user.exec, cluster.for_plugins()) if user.exec is not None else None
        except OSError as error:
            raise ConfigError(f"the kubeconfig cannot be used: {error}") from error
        return Credentials(
            token=Path(user.token_file) if user.token_file else user.token or None,
            authority=cluster.authority(),
            certificate=_file_or_data("client-certificate", user.client_certificate, user.client_certificate_data),
            key=_file_or_data("client-key", user.client_key, user.client_key_data),
            basic=f"{user.username}:{user.password}" if user.username else "",
            issuer=issuer if not has_token and not user.username else None,
            impersonation=user.impersonation(),
            insecure=cluster.insecure_skip_tls_verify,
            server_name=cluster.tls_server_name,
        )


def find_files(kubeconfig: Path | None, environment: Mapping[str, str], home: Path) -> list[Path]:
    """The files to read, or none if there is no kubeconfig; raises `ConfigError` if none of the named files exists."""
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


def select_context(document: Mapping[str, object], context: str | None) -> SelectedContext:
    """The context of this name, or the current context, of a document of `load`."""
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
    return SelectedContext(
        name,
        _converted(clusters[cluster], Cluster, f"cluster {cluster!r}"),
        _converted(users.get(user) or {}, User, f"user {user!r}"),
    )


def _existing(paths: list[Path]) -> list[Path]:
    existing = [path for path in paths if path.exists()]
    if not existing:
        raise ConfigError(f"there is no kubeconfig {', '.join(map(str, paths))}")
    return existing


def _read(path: Path) -> _Document:
    try:
        document = yaml.safe_load(files.read_pipe(path).decode())  # a shell can give a pipe
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
    if command := _mapping(absolute.get("exec")):
        present = {name: content for name, content in command.items() if content is not None}
        program = str(present.get("command") or "")
        absolute["exec"] = {**present, "command": str(directory / program) if "/" in program else program}
    return absolute


def _converted(entry: object, kind: type[T], subject: str) -> T:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the kubeconfig cannot be used: {subject}: {error}") from error


def _file_or_data(name: str, path: str, data: str) -> Path | bytes | None:
    """The content or the file; kubectl prefers the content."""
    if data:
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except ValueError as error:
            raise ConfigError(f"the kubeconfig cannot be used: {name}-data must be base64: {error}") from error
    return Path(path) if path else None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(map(str, names)) or "none"
