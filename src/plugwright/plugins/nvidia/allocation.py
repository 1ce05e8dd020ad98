"""What a container gets with its GPUs, by each of the ways there are; several at once if told.

Everything here is decided from values; what lies on the machine is asked of `files`. CDI specs are written by `specs`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.nvidia.cdi import Specs
from plugwright.plugins.nvidia.config import Ids, Options, Strategy
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.driver_files import Files
from plugwright.plugins.nvidia.sharing import Extras, Unit, by_device
from plugwright.sdk import cdi

__all__ = ["Answers"]

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_MOUNTED = "/var/run/nvidia-container-devices"
_FEATURES = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}


@dataclass(frozen=True, slots=True)
class Answers:
    options: Options
    files: Files
    specs: Specs

    def answer(self, units: Sequence[Unit], extras: Extras) -> Allocation:
        """For the container that is given `units`, with what its share of them brings along."""
        parts = _Parts(env={**self._feature_env(), **extras.env})
        parts.mount(extras.mounts)
        limits = self._confined(extras) if self._through_cdi else []
        if not limits:
            parts.env |= extras.limits
        for strategy in self.options.strategies:
            self._add(strategy, units, limits, parts)
        if not any(strategy.is_cdi for strategy in self.options.strategies):
            parts.cdi += limits
        return parts.joined()

    @property
    def _through_cdi(self) -> bool:
        return self.options.confine or all(strategy.is_cdi for strategy in self.options.strategies)

    def _add(self, strategy: Strategy, units: Sequence[Unit], limits: Sequence[str], parts: "_Parts") -> None:
        match strategy:
            case Strategy.ENVVAR:
                self._add_env(units, parts)
            case Strategy.VOLUME_MOUNTS:
                names = [*self._ids(units), *(f"imex/{channel}" for channel in self.options.features.imex)]
                parts.env[_VISIBLE] = _MOUNTED
                parts.mount(Mount("/dev/null", f"{_MOUNTED}/{name}") for name in names)
            case Strategy.DEVICE_NODES:
                # Where NVIDIA's runtime is there too, it must not add what was not asked for.
                parts.env.setdefault(_VISIBLE, "void")
                parts.node([*self.files.nodes(units), *self.files.feature_nodes(self.options.features)])
                if len(self.options.strategies) == 1:  # else the libraries come by the other way
                    parts.mount(self.files.mounts())
            case Strategy.CDI_ANNOTATIONS:
                parts.annotations |= self._annotation(units, [*self._cdi_names(units), *limits])
            case Strategy.CDI_CRI:
                parts.cdi += [*self._cdi_names(units), *limits]

    def _add_env(self, units: Sequence[Unit], parts: "_Parts") -> None:
        parts.env[_VISIBLE] = ",".join(self._ids(units))
        if self.options.features.imex:
            parts.env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, self.options.features.imex))

    def _ids(self, units: Sequence[Unit]) -> list[str]:
        """Each device once, however many shares of it there are."""
        devices = [held[0] for held in by_device(units).values()]
        return [unit.uuid if self.options.ids is Ids.UUID else unit.index for unit in devices]

    def _cdi_names(self, units: Sequence[Unit]) -> list[str]:
        return [*self.specs.names_of(self._ids(units)), *self.specs.feature_names(self.options.features)]

    def _confined(self, extras: Extras) -> list[str]:
        """The limits as a CDI device of their own: a pod's `env` wins over ours, but not over a CDI device's."""
        if not extras.limits:
            return []
        edits = cdi.edits_of(Allocation(env=extras.limits))
        return [self.specs.write_limits(digest(f"{name}={text}" for name, text in extras.limits.items()), edits)]

    def _annotation(self, units: Sequence[Unit], names: Sequence[str]) -> dict[str, str]:
        made = cdi.annotation("plugwright-nvidia", digest(unit.id for unit in units), names)
        return {self.options.annotation_prefix + key.partition("/")[2]: text for key, text in made.items()}

    def _feature_env(self) -> dict[str, str]:
        return {name: "enabled" for key, name in _FEATURES.items() if getattr(self.options.features, key)}


@dataclass(slots=True)
class _Parts:
    """What is gathered for one container; what comes later at the same place inside takes the earlier one's."""

    env: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)
    _mounts: dict[str, Mount] = field(default_factory=dict)
    _nodes: dict[str, DeviceNode] = field(default_factory=dict)

    def mount(self, mounts: Iterable[Mount]) -> None:
        self._mounts |= {each.container_path: each for each in mounts}

    def node(self, nodes: Iterable[DeviceNode]) -> None:
        self._nodes |= {each.container_path: each for each in nodes}

    def joined(self) -> Allocation:
        return Allocation(self.env, self._mounts.values(), self._nodes.values(), self.annotations, self.cdi)
