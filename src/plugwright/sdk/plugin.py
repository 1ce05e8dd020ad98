"""What a plugin author subclasses.

One method is required. Every method may be written with or without `async`; those without run in threads, so that
they may block. The kubelet is told of what is overridden, so the two cannot disagree.

Which devices to choose when the kubelet asks: the default, and making any answer a valid one. Pure.
"""

from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device, Options, PreferenceRequest, natural_order

__all__ = ["Plugin", "announced", "completed", "fewest_numa_nodes"]

_EXACT_NODES = 12  # subsets of more nodes than this are not tried one by one


def fewest_numa_nodes(available: Sequence[Device], required: Sequence[Device], size: int) -> list[Device]:
    """`size` devices, `required` among them, that touch as few NUMA nodes as possible; then in order of their ids."""
    chosen = sorted(required, key=_by_id)[:size]
    taken = {device.id for device in chosen}
    free = sorted((device for device in available if device.id not in taken), key=_by_id)
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    counts = Counter(device.numa for device in free)  # few different ones, however many devices there are
    for nodes in _node_sets({device.numa for device in chosen}, counts):
        if sum(count for numa, count in counts.items() if _is_near(numa, nodes)) >= missing:
            return chosen + list(islice((device for device in free if _is_near(device.numa, nodes)), missing))
    return chosen + free[:missing]


def completed(answer: Iterable[str], request: PreferenceRequest) -> list[str]:
    """A valid answer out of a plugin's: what is required first, only what is available, no more than asked."""
    allowed = set(request.available)
    wanted = [device_id for device_id in answer if device_id in allowed]
    return list(dict.fromkeys([*request.required, *wanted]))[: request.size]


def _by_id(device: Device) -> tuple[tuple[int, int, str], ...]:
    return natural_order(device.id)


def _is_near(numa: tuple[int, ...], nodes: frozenset[int]) -> bool:
    return not numa or not nodes.isdisjoint(numa)


def _node_sets(chosen: Iterable[tuple[int, ...]], free: Iterable[tuple[int, ...]]) -> Iterator[frozenset[int]]:
    """Sets of nodes that touch every device already chosen, the smallest first, each size in node order."""
    fixed = [numa for numa in chosen if numa]
    nodes = sorted({node for numa in (*fixed, *free) for node in numa})
    if len(nodes) > _EXACT_NODES:
        yield from _growing(fixed, nodes)
        return
    for count in range(len(nodes) + 1):
        for subset in map(frozenset, combinations(nodes, count)):
            if all(_is_near(numa, subset) for numa in fixed):
                yield subset


def _growing(fixed: Iterable[tuple[int, ...]], nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    """More nodes than can be tried in every way: one more than must be, then more and more."""
    near = frozenset(node for numa in fixed for node in numa)
    yield near
    yield from (near | {node} for node in nodes)
    for node in nodes:
        near |= {node}
        yield near


Devices = Iterable[Device]


class Plugin:
    """A kind of device that this node offers under one resource name."""

    resource: str

    def discover(self) -> "AsyncIterable[Devices] | Iterable[Devices] | Awaitable[Devices] | Devices":
        """Yields complete device lists, each one the whole truth, replacing the last.

        A generator goes on for as long as devices may change; when it ends, its last list stays. When it raises, the
        last list stays too, and it is called again after a while.
        """
        raise NotImplementedError(f"{type(self).__name__} has no discover()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | Awaitable[Allocation]:
        """What a container gets together with `devices`. The same devices may be asked for again."""
        return Allocation()

    def prefer(
        self, available: Sequence[Device], required: Sequence[Device], size: int
    ) -> Sequence[Device] | Awaitable[Sequence[Device]]:
        """The best `size` of `available`, all of `required` among them: a wish that the kubelet may honour."""
        return fewest_numa_nodes(available, required, size)

    def pre_start(self, devices: Sequence[Device]) -> Awaitable[None] | None:
        """Called before each start of a container that holds `devices`: to reset them, for one."""
        return None

    def command(self, name: str, arguments: Mapping[str, str]) -> str | Awaitable[str]:
        """An operator's own command to this plugin, through the daemon's control socket; returns a line to show."""
        raise PluginError(f"{self.resource} takes no command {name!r}")


def announced(plugin: Plugin) -> Options:
    """What the kubelet is told that the plugin supports."""
    # The default preference is worth the kubelet's call; a pre-start call is not free, and a plugin that is down would
    # block every container start.
    return Options(pre_start=type(plugin).pre_start is not Plugin.pre_start, preference=True)
