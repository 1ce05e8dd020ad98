"""The kubeconfig of an embedded cluster: mode 0600, written at once, and never over one that is somebody else's."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from plugwright.cli.cluster_place import write_privately
from plugwright.errors import ConfigError

__all__ = ["Kubeconfig", "check_foreign"]

_NAME = "plugwright"
_PARTS = ("clusters", "contexts", "users")


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """`authority` is the certificate that clients are to trust."""

    server: str
    authority: Path
    token: str = field(repr=False)

    @contextmanager
    def at(self, path: Path, *, kept: bool) -> Iterator[None]:
        """There while inside, or for good."""
        text = yaml.safe_dump(self._document(), sort_keys=False)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_privately(path, text)
        except OSError as error:
            raise ConfigError(f"cannot write the kubeconfig {path}: {error.strerror}") from error
        try:
            yield
        finally:
            if not kept and self._is_here(path):
                path.unlink(missing_ok=True)

    def _document(self) -> dict[str, object]:
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _NAME, "cluster": cluster}],
            "users": [{"name": _NAME, "user": {"token": self.token}}],
            "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
            "current-context": _NAME,
        }

    def _is_here(self, path: Path) -> bool:
        """kubectl may have changed it, and another cluster may have written its own."""
        try:
            return self.token in path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False


def check_foreign(path: Path) -> None:
    """Raises if there is a file that no `plugwright up` has made."""
    if path.exists() and not _is_ours(path):
        raise ConfigError(
            f"{path} is there and not of plugwright: choose another --kubeconfig, or replace it with --force"
        )


def _is_ours(path: Path) -> bool:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    if not isinstance(document, dict):
        return False
    parts = [document.get(part) for part in _PARTS]
    return all(isinstance(part, list) and [_name(each) for each in part] == [_NAME] for part in parts)


def _name(entry: object) -> object:
    return entry.get("name") if isinstance(entry, dict) else None
