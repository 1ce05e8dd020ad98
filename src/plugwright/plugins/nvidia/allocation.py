"""The allocation of a container that gets GPUs, by the configured device list strategies.

Decided from values; `driver_files` knows the files on the host, and `cdi` writes the CDI specs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.nvidia.cdi import GpuSpecs
from plugwright.plugins.nvidia.config import DeviceIdStrategy, DeviceListStrategy, NvidiaConfig
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit, units_by_device
from plugwright.sdk import cdi

__all__ = ["AllocationBuilder"]

_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
_FEATURES = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}


@dataclass(frozen=True, slots=True)
class AllocationBuilder:
    config: NvidiaConfig
    files: DriverFiles
    specs: GpuSpecs

    def build(self, units: Sequence[GpuUnit], extras: ContainerExtras) -> Allocation:
        strategies = self.config.strategies
        features = {name: "enabled" for key, name in _FEATURES.items() if getattr(self.config, key)}
        parts = _AllocationParts(env={**features, **extras.env})
        parts.add_mounts(extras.mounts)
        limits: list[str] = []
        if self.config.confine == "cdi" or all(strategy.is_cdi for strategy in strategies):
            limits = self._limits_device(extras)
        if not limits:
            parts.env |= extras.limits
        for strategy in strategies:
            self._add(strategy, units, limits, parts)
        if not any(strategy.is_cdi for strategy in strategies):
            parts.cdi += limits
        return parts.allocation()

    def _add(
        self, strategy: DeviceListStrategy, units: Sequence[GpuUnit], limits: Sequence[str], parts: "_AllocationParts"
    ) -> None:
        channels = self.config.imex_channels
        match strategy:
            case DeviceListStrategy.ENVVAR:
                parts.env[_VISIBLE_DEVICES] = ",".join(self._ids(units))
                if channels:
                    parts.env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
            case DeviceListStrategy.VOLUME_MOUNTS:
                names = [*self._ids(units), *(f"imex/{channel}" for channel in channels)]
                parts.env[_VISIBLE_DEVICES] = _DEVICE_MOUNTS
                parts.add_mounts(Mount("/dev/null", f"{_DEVICE_MOUNTS}/{name}") for name in names)
            case DeviceListStrategy.DEVICE_NODES:
                # Where NVIDIA's runtime is installed, it must not add other devices.
                parts.env.setdefault(_VISIBLE_DEVICES, "void")
                parts.add_nodes([*self.files.nodes(units), *self.files.configured_feature_nodes()])
                if len(self.config.strategies) == 1:  # else the other strategy brings the libraries
                    parts.add_mounts(self.files.mounts())
            case DeviceListStrategy.CDI_ANNOTATIONS:
                parts.annotations |= self._annotations(units, [*self.specs.names(self._ids(units)), *limits])
            case DeviceListStrategy.CDI_CRI:
                parts.cdi += [*self.specs.names(self._ids(units)), *limits]

    def _ids(self, units: Sequence[GpuUnit]) -> list[str]:
        """Each device once, however many shares of it the container has."""
        devices = [shares[0] for shares in units_by_device(units).values()]
        by_uuid = self.config.ids is DeviceIdStrategy.UUID or bool(self.specs.withheld)
        return [unit.uuid if by_uuid else unit.index for unit in devices]

    def _limits_device(self, extras: ContainerExtras) -> list[str]:
        """The limits as a CDI device: a pod's `env` overrides the plugin's, but not a CDI device's."""
        if not extras.limits:
            return []
        edits = cdi.edits_of(Allocation(env=extras.limits))
        return [self.specs.write_limits(digest(f"{name}={text}" for name, text in extras.limits.items()), edits)]

    def _annotations(self, units: Sequence[GpuUnit], names: Sequence[str]) -> dict[str, str]:
        annotations = cdi.annotation("plugwright-nvidia", digest(unit.id for unit in units), names)
        prefix = self.config.cdi.annotations
        return {prefix + key.partition("/")[2]: text for key, text in annotations.items()}


@dataclass(slots=True)
class _AllocationParts:
    """The parts of one allocation; of two mounts or nodes at the same path in the container the later one wins."""

    env: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)
    _mounts: dict[str, Mount] = field(default_factory=dict)
    _nodes: dict[str, DeviceNode] = field(default_factory=dict)

    def add_mounts(self, mounts: Iterable[Mount]) -> None:
        self._mounts |= {mount.container_path: mount for mount in mounts}

    def add_nodes(self, nodes: Iterable[DeviceNode]) -> None:
        self._nodes |= {node.container_path: node for node in nodes}

    def allocation(self) -> Allocation:
        return Allocation(self.env, self._mounts.values(), self._nodes.values(), self.annotations, self.cdi)
