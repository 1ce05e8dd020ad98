"""What a container gets with its GPUs, by each of the ways there are; several at once if told.

Everything here is decided from values; what lies on the machine is asked of `files`. CDI specs are written by `specs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plugwright.model import Allocation, Mount
from plugwright.plugins.nvidia.digests import digest
from plugwright.plugins.nvidia.files import Files
from plugwright.plugins.nvidia.isolation import Extras, by_device
from plugwright.plugins.nvidia.options import Ids, Options, Strategy
from plugwright.plugins.nvidia.sharing import Unit
from plugwright.plugins.nvidia.specs import Specs
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
        given = Allocation(env={**self._feature_env(), **extras.env}, mounts=extras.mounts)
        names: list[str] = []
        if self._through_cdi:
            names += self._confined(extras)
        elif extras.limits:
            given = _joined(given, Allocation(env=extras.limits))
        for strategy in self.options.strategies:
            given = _joined(given, self._by(strategy, units, names))
        if names and not any(strategy.is_cdi for strategy in self.options.strategies):
            given = _joined(given, Allocation(cdi=names))
        return given

    @property
    def _through_cdi(self) -> bool:
        return self.options.confine or all(strategy.is_cdi for strategy in self.options.strategies)

    def _by(self, strategy: Strategy, units: Sequence[Unit], names: list[str]) -> Allocation:
        match strategy:
            case Strategy.ENVVAR:
                return self._by_env(units)
            case Strategy.VOLUME_MOUNTS:
                return self._by_mounts(units)
            case Strategy.DEVICE_NODES:
                return self._by_nodes(units)
            case Strategy.CDI_ANNOTATIONS:
                return Allocation(annotations=self._annotation(units, [*self._cdi_names(units), *names]))
            case Strategy.CDI_CRI:
                return Allocation(cdi=[*self._cdi_names(units), *names])

    def _by_env(self, units: Sequence[Unit]) -> Allocation:
        channels = ",".join(map(str, self.options.features.imex))
        return Allocation(
            env={_VISIBLE: ",".join(self._ids(units)), **({"NVIDIA_IMEX_CHANNELS": channels} if channels else {})}
        )

    def _by_mounts(self, units: Sequence[Unit]) -> Allocation:
        names = [*self._ids(units), *(f"imex/{channel}" for channel in self.options.features.imex)]
        mounts = [Mount("/dev/null", f"{_MOUNTED}/{name}") for name in names]
        return Allocation(env={_VISIBLE: _MOUNTED}, mounts=mounts)

    def _by_nodes(self, units: Sequence[Unit]) -> Allocation:
        nodes = [*self.files.nodes(units), *self.files.feature_nodes(self.options.features)]
        # Where NVIDIA's runtime is there too, it must not add what was not asked for.
        return Allocation(env={_VISIBLE: "void"}, nodes=nodes, mounts=self.files.mounts())

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


def _joined(one: Allocation, other: Allocation) -> Allocation:
    """Both; what stands in both at the same place inside the container is the other's."""
    places = {mount.container_path for mount in other.mounts}
    nodes = {node.container_path for node in other.nodes}
    return Allocation(
        env={**one.env, **other.env},
        mounts=[*(each for each in one.mounts if each.container_path not in places), *other.mounts],
        nodes=[*(each for each in one.nodes if each.container_path not in nodes), *other.nodes],
        annotations={**one.annotations, **other.annotations},
        cdi=[*one.cdi, *other.cdi],
    )
