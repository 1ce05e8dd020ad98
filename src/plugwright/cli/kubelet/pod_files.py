"""Pods as YAML: files named on the command line, and a folder in which files come, change and go.

A folder is looked through, not watched: that is `emulation`'s. What the kubelet makes of a pod is its own affair.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.config.document import parse_all
from plugwright.errors import ConfigError, InvalidPod
from plugwright.kubelet import PodSpec, pods

__all__ = ["Changes", "Folder", "read"]

_SUFFIXES = (".json", ".yaml", ".yml")
_STDIN = Path("-")


def read(path: Path) -> list[PodSpec]:
    """Every pod of a file, or of standard input where it is `-`; raises `ConfigError` with the line."""
    name, text = _text(path)
    found = []
    for document in parse_all(name, text):
        if document.content is None:
            continue  # nothing between two separators
        try:
            found.append(pods.read(document.content))
        except InvalidPod as error:
            raise document.error("$", str(error)) from error
    return found


def _text(path: Path) -> tuple[str, str]:
    try:
        return ("<stdin>", sys.stdin.read()) if path == _STDIN else (str(path), path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}") from error


@dataclass(frozen=True, slots=True)
class Changes:
    """By their keys, namespace/name; a pod that changed is removed and added. `problems` by file."""

    removed: tuple[str, ...] = ()
    added: Mapping[str, PodSpec] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


class Folder:
    """The pods in a folder, as they were when it was last looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, list[PodSpec]] = {}
        self._pods: dict[str, PodSpec] = {}
        self._problems: dict[str, str] = {}

    def look(self) -> Changes:
        """What is new since the last time; a file that is not good leaves its pods as they are."""
        problems = self._read()
        now = self._collected(problems)
        before, self._pods = self._pods, now
        told, self._problems = self._problems, problems
        return Changes(
            removed=tuple(sorted(key for key, pod in before.items() if now.get(key) != pod)),
            added={key: pod for key, pod in sorted(now.items()) if before.get(key) != pod},
            problems={name: text for name, text in sorted(problems.items()) if told.get(name) != text},
        )

    def _read(self) -> dict[str, str]:
        problems, files = {}, {}
        for path in self._listed():
            try:
                files[path] = read(path)
            except ConfigError as error:
                problems[path.name] = str(error)
                files[path] = self._files.get(path, [])
        self._files = files
        return problems

    def _listed(self) -> list[Path]:
        try:
            found = sorted(self._path.iterdir())
        except FileNotFoundError:
            return []  # the folder went, and its pods with it
        return [path for path in found if path.suffix in _SUFFIXES and path.name[0] != "." and path.is_file()]

    def _collected(self, problems: dict[str, str]) -> dict[str, PodSpec]:
        collected: dict[str, PodSpec] = {}
        for path, found in self._files.items():
            for pod in found:
                if collected.setdefault(pod.key, pod) is not pod:
                    problems[path.name] = f"{path}: there is another pod {pod.key} in this folder"
        return collected
