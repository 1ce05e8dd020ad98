"""Pods and their ResourceClaims in YAML: files named on the command line, and a folder whose files come and go.

A folder is only read here; `cluster.standalone.program` watches it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from plugwright.cluster.standalone.pod_changes import Claim, PodChanges
from plugwright.config.document import parse_all
from plugwright.errors import ConfigError, InvalidPod
from plugwright.kubelet import PodSpec, pods

__all__ = ["PodFile", "PodFolder", "claim_key", "read"]

_SUFFIXES = (".json", ".yaml", ".yml")
_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class PodFile:
    """What one file has."""

    pods: tuple[PodSpec, ...] = ()
    claims: tuple[Claim, ...] = ()


def read(path: Path) -> PodFile:
    """The pods and claims of a file, or of standard input for `-`; raises `ConfigError` with the line."""
    name, text = _text(path)
    specs, claims = [], []
    for document in parse_all(name, text):
        if document.content is None:
            continue  # nothing between two separators
        if _is_claim(document.content):
            if not claim_key(document.content).rpartition("/")[2]:
                raise ConfigError(f"{name}:{document.line('$', 'kind')}: a ResourceClaim must have a name")
            claims.append(document.content)
            continue
        try:
            specs.append(pods.read(document.content))
        except InvalidPod as error:
            raise ConfigError(f"{name}:{document.line(error.path, error.key)}: {error}") from error
    return PodFile(tuple(specs), tuple(claims))


def _is_claim(content: object) -> TypeGuard[Claim]:
    return isinstance(content, Mapping) and content.get("kind") == "ResourceClaim"


def claim_key(claim: Claim) -> str:
    metadata = claim.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"


def _text(path: Path) -> tuple[str, str]:
    try:
        return ("<stdin>", sys.stdin.read()) if path == _STDIN else (str(path), path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}") from error


class PodFolder:
    """The pods in a folder, as of the last scan."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Path, PodFile] = {}
        self._pods: dict[str, PodSpec] = {}
        self._claims: dict[str, Claim] = {}
        self._problems: dict[str, str] = {}

    def scan(self) -> PodChanges:
        """The changes since the last scan; an invalid file keeps the pods it had."""
        problems = self._read_files()
        now = self._pods_by_key(problems)
        before, self._pods = self._pods, now
        claims = {claim_key(claim): claim for file in self._files.values() for claim in file.claims}
        known, self._claims = self._claims, claims
        known_problems, self._problems = self._problems, problems
        return PodChanges(
            removed=tuple(sorted(key for key, pod in before.items() if now.get(key) != pod)),
            added={key: pod for key, pod in sorted(now.items()) if before.get(key) != pod},
            removed_claims=tuple(sorted(known.keys() - claims.keys())),
            claims={key: claim for key, claim in sorted(claims.items()) if known.get(key) != claim},
            problems={name: text for name, text in sorted(problems.items()) if known_problems.get(name) != text},
        )

    def _read_files(self) -> dict[str, str]:
        problems, files = {}, {}
        for path in self._paths():
            try:
                files[path] = read(path)
            except ConfigError as error:
                line = str(error).removeprefix(f"{path}:")
                problems[path.name] = f"line {line}" if line != str(error) else line
                files[path] = self._files.get(path, PodFile())
        self._files = files
        return problems

    def _paths(self) -> list[Path]:
        try:
            paths = sorted(self.path.iterdir())
        except FileNotFoundError:
            return []  # without the folder there are no pods
        return [path for path in paths if path.suffix in _SUFFIXES and path.name[0] != "." and path.is_file()]

    def _pods_by_key(self, problems: dict[str, str]) -> dict[str, PodSpec]:
        pods_by_key: dict[str, PodSpec] = {}
        for path, file in self._files.items():
            for pod in file.pods:
                if pods_by_key.setdefault(pod.key, pod) is not pod:
                    problems[path.name] = f"{path}: another file in this folder has a pod {pod.key} too"
        return pods_by_key
