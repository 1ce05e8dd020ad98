"""The kubeconfig with which clients reach the API server."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from plugwright.errors import ConfigError
from plugwright.system import files

__all__ = ["Kubeconfig", "check_not_foreign"]

_CONTEXT = "plugwright"  # the name of the kubeconfig's cluster, user and context


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """`authority` is the certificate that clients trust."""

    server: str
    authority: Path
    token: str = field(repr=False)

    @contextmanager
    def written(self, path: Path, *, kept: bool) -> Iterator[None]:
        """Writes the file, mode 0600; leaving removes it unless it is `kept`."""
        text = yaml.safe_dump(self._document(), sort_keys=False)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_atomically(path, text, mode=0o600, sync=False)
        except OSError as error:
            raise ConfigError(f"cannot write the kubeconfig {path}: {error.strerror}") from error
        try:
            yield
        finally:
            if not kept and self._is_still_at(path):
                path.unlink(missing_ok=True)

    def _document(self) -> dict[str, object]:
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _CONTEXT, "cluster": cluster}],
            "users": [{"name": _CONTEXT, "user": {"token": self.token}}],
            "contexts": [{"name": _CONTEXT, "context": {"cluster": _CONTEXT, "user": _CONTEXT}}],
            "current-context": _CONTEXT,
        }

    def _is_still_at(self, path: Path) -> bool:
        """Whether the file is still ours, possibly changed by kubectl: another cluster can have written its own."""
        try:
            return self.token in path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False


def check_not_foreign(path: Path) -> None:
    """Raises `ConfigError` if there is a kubeconfig that `plugwright up` did not write."""
    if path.exists() and not _is_our_kubeconfig(path):
        raise ConfigError(
            f"{path} exists and was not written by plugwright: choose another --kubeconfig, or replace it with --force"
        )


def _is_our_kubeconfig(path: Path) -> bool:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    if not isinstance(document, dict):
        return False
    lists = [document.get(key) for key in ("clusters", "contexts", "users")]
    return all(isinstance(entries, list) and _names(entries) == [_CONTEXT] for entries in lists)


def _names(entries: list[object]) -> list[object]:
    return [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
