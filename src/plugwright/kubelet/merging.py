"""The answers of several plugins made one: what the container runtime is told.

Pure. The first answer wins; a kubelet takes them in no particular order, here they come sorted by resource, and a
conflict is said, because on a real node either may win.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from plugwright.protocol.answers import Answer, AnsweredMount, AnsweredNode

__all__ = ["Conflict", "Granted", "merge"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Granted:
    """What a container gets from its devices: env, mounts, device nodes, annotations and CDI names.

    `env` has the container's own variables too, which win over the plugins'.
    """

    env: Mapping[str, str]
    mounts: tuple[AnsweredMount, ...]
    nodes: tuple[AnsweredNode, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two plugins want different things in one place."""

    what: str
    key: str
    kept: str
    dropped: str

    def __str__(self) -> str:
        return f"{self.what} {self.key} is {self.kept!r} in one answer and {self.dropped!r} in another"


def merge(answers: Sequence[Answer], own_env: Mapping[str, str]) -> tuple[Granted, list[Conflict]]:
    """One for the runtime, and what it had to leave out (3.54, 3.55)."""
    conflicts: list[Conflict] = []
    env = _texts("env", [answer.env for answer in answers], conflicts)
    mounts = [each for answer in answers for each in answer.mounts]
    nodes = [each for answer in answers for each in answer.nodes]
    granted = Granted(
        env={**env, **own_env},
        mounts=tuple(_placed("mount", mounts, conflicts, _mount_place)),
        nodes=tuple(_placed("device node", nodes, conflicts, _node_place)),
        annotations=_texts("annotation", [answer.annotations for answer in answers], conflicts),
        cdi=tuple(dict.fromkeys(name for answer in answers for name in answer.cdi)),
    )
    return granted, conflicts


def _texts(what: str, maps: Sequence[Mapping[str, str]], conflicts: list[Conflict]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for texts in maps:
        for key, value in texts.items():
            if merged.setdefault(key, value) != value:
                conflicts.append(Conflict(what, key, merged[key], value))
    return merged


def _mount_place(mount: AnsweredMount) -> tuple[str, str]:
    return mount.container_path, mount.host_path


def _node_place(node: AnsweredNode) -> tuple[str, str]:
    return node.container_path, node.host_path


def _placed(
    what: str, items: Sequence[_Item], conflicts: list[Conflict], place: Callable[[_Item], tuple[str, str]]
) -> Iterator[_Item]:
    """One item for each path inside; only the host's paths are compared, as a kubelet does."""
    hosts: dict[str, str] = {}
    for item in items:
        inside, host = place(item)
        if inside not in hosts:
            hosts[inside] = host
            yield item
        elif hosts[inside] != host:
            conflicts.append(Conflict(what, inside, hosts[inside], host))
