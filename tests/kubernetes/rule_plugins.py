"""Mutants of the small plugin beside a real kubelet, many at a time, and what the node and its pods show of them.

Each mutant has a resource of its own name: five devices, one of them unhealthy.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.pods import Pod, Pods, event_texts, refusal
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

__all__ = ["have", "held", "logged", "marked", "refusals", "refused", "resource", "started", "tell"]


def resource(mutant: str) -> str:
    return f"example.com/{mutant}"


def started(plugins: Plugins, *mutants: str) -> dict[str, Process]:
    return {mutant: plugins.mutant(mutant, resource(mutant)) for mutant in mutants}


def logged(processes: Mapping[str, Process], text: str) -> None:
    """Waits until each of them has written this."""

    def missing() -> dict[str, list[str]]:
        return {name: process.lines() for name, process in processes.items() if not process.lines(text)}

    until(f"{text!r} of {sorted(processes)}", lambda: not missing(), last=missing)


@contextmanager
def marked(cluster: Cluster, *names: str) -> Iterator[None]:
    """Files while inside, by which the small plugin's devices fail and its calls are held."""
    paths = [cluster.kubelet_dir / name for name in names]
    try:
        for path in paths:
            path.touch()
        yield
    finally:
        for path in paths:
            path.unlink()


@contextmanager
def held(pods: Pods, cluster: Cluster, call: str, processes: Mapping[str, Process]) -> Iterator[list[Pod]]:
    """A pod of each of these mutants; while inside, its call is there and has no answer."""
    with marked(cluster, *(f"hold-{call}-{mutant}" for mutant in processes)):
        made = [pods.create(f"held-{mutant}", {resource(mutant): 1}) for mutant in processes]
        logged(processes, f"held: {call}")
        yield made


def have(cluster: Cluster, wanted: dict[str, tuple[int, int] | None]) -> None:
    """Waits until the node has so many of the mutants' resources: capacity and allocatable."""

    def found() -> dict[str, tuple[int, int] | None]:
        status = cluster.node()["status"]
        counts = ([status[kind].get(resource(mutant)) for kind in ("capacity", "allocatable")] for mutant in wanted)
        return {
            mutant: None if count[0] is None else (int(count[0]), int(count[1]))
            for mutant, count in zip(wanted, counts, strict=True)
        }

    until(f"the node has {wanted}", lambda: found() == wanted, last=found)


def tell(pods: Pods, reason: str, words: dict[str, str]) -> None:
    """Waits until events of this reason have these words, by pod."""

    def missing() -> dict[str, str]:
        texts = event_texts(pods.kubectl, reason)
        return {name: texts.get(name, "") for name, wanted in words.items() if wanted not in texts.get(name, "")}

    until(f"{reason} of {sorted(words)}", lambda: not missing(), last=missing)


def refused(pods: Pods, words: dict[str, str]) -> None:
    """Waits until these pods are refused for good with these words."""

    def missing() -> dict[str, str]:
        texts = {name: str(refusal(pod)) for name, pod in pods.every().items()}
        return {name: texts[name] for name, wanted in words.items() if wanted not in texts[name]}

    until("they are refused", lambda: not missing(), last=missing)


def refusals(pods: Pods, name: str, mutant: str) -> Iterator[str]:
    """What the next pod of the mutant is refused with, and the next."""
    for number in count():
        pods.create(f"{name}-{number}", {resource(mutant): 1})
        until("it is refused", lambda: refusal(pods.every()[f"{name}-{number}"]))  # noqa: B023
        yield str(refusal(pods.every()[f"{name}-{number}"]))
