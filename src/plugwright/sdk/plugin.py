"""The base class of plugins, and the default choice of devices.

One method is required. Every method can be written with or without `async`; methods without it run in threads and can
block. The options sent to the kubelet follow from the overridden methods, so the two cannot disagree.
"""

from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device, Options, PreferenceRequest, natural_order
from plugwright.sdk.node_state import NodeState
from plugwright.sdk.serve_settings import Expectation, ServeSettings
from plugwright.sdk.share_usage import HeldShare, ShareUsage

__all__ = ["Plugin", "answers_now", "fewest_numa_nodes", "supported_options", "valid_preference"]

_EXACT_NODES = 12  # with more nodes than this, not every subset is tried

Devices = Iterable[Device]


class Plugin:
    """A kind of device, offered by this node under one resource name."""

    resource: str

    empty_reason: str = ""
    """Why the last list has no device, if the plugin knows; `plugwright status` shows it."""

    serve: ServeSettings = ServeSettings()
    """The API through which the devices are offered; set by run() and by the operator's file."""

    admin_access_hooks: bool = False
    """Whether pre_start() and release() are called for claims with admin access; others can hold their devices."""

    health_lease: float = 0.0
    """Seconds within which discover() yields again although nothing has changed; 0: it yields changes only.

    Without a list in time, the health of the devices is Unknown in the status of pods with claims.
    """

    expect: Expectation | None = None
    """The devices that this node should have; set by the operator's file."""

    configured: str = ""
    """Digest of the plugin's configuration: another configuration expects other devices."""

    simulates: tuple[str, ...] = ()
    """Commands of `command` that make simulated devices fail, recover, appear or disappear: for the page."""

    def discover(self) -> "AsyncIterable[Devices] | Iterable[Devices] | Awaitable[Devices] | Devices":
        """Yields complete device lists; each replaces the previous list.

        A generator runs for as long as devices can change; when it ends, its last list stays. When it raises, the last
        list stays too, and discover() is called again after a while.
        """
        raise NotImplementedError(f"{type(self).__name__} has no discover()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | Awaitable[Allocation]:
        """The allocation for a container with `devices`. The same devices can be allocated again."""
        return Allocation()

    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        """The result of allocate() if it is already known; None to have allocate() called.

        For plugins with answers known in advance. It is called on the event loop: it must not wait, nor access a file
        system. If it returns the same object again, the answer is encoded only once. Not called for a plugin with a
        release(), nor if a subclass overrides allocate() alone.
        """
        return None

    def prefer(
        self, available: Sequence[Device], required: Sequence[Device], size: int
    ) -> Sequence[Device] | Awaitable[Sequence[Device]]:
        """The best `size` of `available`, including all of `required`. The kubelet can ignore this preference."""
        return fewest_numa_nodes(available, required, size)

    def pre_start(self, devices: Sequence[Device]) -> Awaitable[None] | None:
        """Called before each start of a container with `devices`, for example to reset them."""
        return None

    def check_parameters(self, parameters: Mapping[str, object]) -> Awaitable[None] | None:
        """Raises if a claim's opaque configuration cannot be applied; the text reaches the owner of the pod."""
        raise PluginError(f"{self.resource} takes no parameters, got {', '.join(sorted(parameters))}")

    def release(self, devices: Sequence[Device]) -> Awaitable[None] | None:
        """Called when allocated `devices` are given back; can be called again for the same devices.

        For a claim, before its pod is gone; for a pod of the device plugin API, some time after it is gone.
        """
        return None

    def restore(self, node: NodeState) -> Awaitable[None] | None:
        """Called before discover() and before the resource is registered.

        The kubelet reuses its stored answers when it starts a container, also after a reboot: files in /run, /dev or
        /tmp named there must be recreated, and must not mean another device.
        """
        return None

    def usage(self, held: Sequence[HeldShare]) -> Sequence[ShareUsage]:
        """The last measured use of each device by the container or claim with these shares.

        Called for every holder whenever a report or metrics are made, from any thread: it answers from memory.
        """
        return ()

    def command(self, name: str, arguments: Mapping[str, str]) -> str | Awaitable[str]:
        """Runs an operator's custom command, sent through the daemon's control socket; returns a line to show."""
        raise PluginError(f"{self.resource} takes no command {name!r}")


def answers_now(plugin: Plugin) -> bool:
    """Whether allocate_now() can be called: a subclass with another allocate() gives other answers."""
    kind = type(plugin)
    if kind.allocate_now is Plugin.allocate_now or kind.release is not Plugin.release:
        return False
    owner = next(base for base in kind.__mro__ if "allocate" in vars(base) or "allocate_now" in vars(base))
    return "allocate_now" in vars(owner)


def supported_options(plugin: Plugin) -> Options:
    """The plugin's options for the kubelet."""
    # The default preference is worth the kubelet's call. A pre-start call is not: it delays every container start, and
    # fails it while the plugin is stopped.
    return Options(pre_start=type(plugin).pre_start is not Plugin.pre_start, preference=True)


def valid_preference(device_ids: Iterable[str], request: PreferenceRequest) -> list[str]:
    """The required devices first, then the available ones of `device_ids`, at most as many as requested."""
    available = set(request.available)
    chosen = [device_id for device_id in device_ids if device_id in available]
    return list(dict.fromkeys([*request.required, *chosen]))[: request.size]


def fewest_numa_nodes(available: Sequence[Device], required: Sequence[Device], size: int) -> list[Device]:
    """`size` devices including `required`, on as few NUMA nodes as possible; then in order of their ids."""
    chosen = sorted(required, key=_by_id)[:size]
    taken = {device.id for device in chosen}
    free = sorted((device for device in available if device.id not in taken), key=_by_id)
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    counts = Counter(device.numa for device in free)  # few distinct values, however many devices there are
    for nodes in _node_sets({device.numa for device in chosen}, counts):
        if sum(count for numa, count in counts.items() if _is_near(numa, nodes)) >= missing:
            return chosen + list(islice((device for device in free if _is_near(device.numa, nodes)), missing))
    return chosen + free[:missing]


def _by_id(device: Device) -> tuple[tuple[int, int, str], ...]:
    return natural_order(device.id)


def _is_near(numa: tuple[int, ...], nodes: frozenset[int]) -> bool:
    return not numa or not nodes.isdisjoint(numa)


def _node_sets(chosen: Iterable[tuple[int, ...]], free: Iterable[tuple[int, ...]]) -> Iterator[frozenset[int]]:
    """Sets of nodes touching every device already chosen, the smallest first; sets of equal size in node order."""
    fixed = [numa for numa in chosen if numa]
    nodes = sorted({node for numa in (*fixed, *free) for node in numa})
    if len(nodes) > _EXACT_NODES:
        yield from _growing_sets(fixed, nodes)
        return
    for count in range(len(nodes) + 1):
        for subset in map(frozenset, combinations(nodes, count)):
            if all(_is_near(numa, subset) for numa in fixed):
                yield subset


def _growing_sets(fixed: Iterable[tuple[int, ...]], nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    """The nodes of the chosen devices, then with one more node, then with more and more."""
    near = frozenset(node for numa in fixed for node in numa)
    yield near
    yield from (near | {node} for node in nodes)
    for node in nodes:
        near |= {node}
        yield near
