"""The allocation of GPUs to a container, by the configured device list strategies.

It is computed from values; `driver_files` finds the files on the host, and `cdi` writes the CDI specs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from plugwright.errors import PluginError
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


class AllocationBuilder(msgspec.Struct, frozen=True):
    config: NvidiaConfig
    files: DriverFiles
    specs: GpuSpecs

    def build(self, units: Sequence[GpuUnit], extras: ContainerExtras) -> Allocation:
        strategies = self.config.strategies
        if extras.libraries and not self._brings_libraries:
            raise PluginError(
                "a limiter's libraries need the strategy device-nodes alone, or one of CDI with our specs"
            )
        features = {name: "enabled" for key, name in _FEATURES.items() if getattr(self.config, key)}
        parts = _AllocationParts(env={**features, **extras.env})
        by_cdi = [strategy.is_cdi for strategy in strategies]
        # A pod's `env` overrides the plugin's, but not a CDI device's.
        confined = extras.limits if self.config.confine == "cdi" or all(by_cdi) else {}
        limits = self.specs.write_limits(confined, extras.libraries if any(by_cdi) else {})
        if not confined:
            parts.env |= extras.limits
        for strategy in strategies:
            self._add(strategy, units, limits, parts)
        if not any(by_cdi):
            parts.cdi += limits
            parts.add_mounts(self.files.replacements(extras.libraries))
        parts.add_mounts(extras.mounts)  # last, because a limiter's file replaces the driver's
        return parts.allocation()

    def fault(self, unit: GpuUnit) -> str:
        """Why no container can get this device now; empty if it is available."""
        try:
            if self._hands_out_files:
                self.files.nodes([unit])
                self.files.configured_features()
            if self._brings_libraries:
                self.files.mounts()
        except (PluginError, OSError) as error:
            return str(error)
        return ""

    def loader_cache(self) -> str:
        """What refreshes the loader's cache in containers, for `plugwright status`; empty if this is not our task."""
        if not self._brings_libraries or self.files.simulated:
            return ""
        program = self.specs.hook_program() if self._writes_specs else None
        return f"refreshed by {program.path}" if program else "not refreshed, TRITON_LIBCUDA_PATH is set instead"

    def driver_directories(self) -> list[Path]:
        """The directories of the driver's files named in answers; CDI specs, which lists write, name others."""
        by_nodes = self.config.strategies == [DeviceListStrategy.DEVICE_NODES]
        return self.files.libraries.read_directories() if by_nodes and not self.files.simulated else []

    @property
    def _hands_out_files(self) -> bool:
        """Whether we name the nodes, instead of NVIDIA's runtime or another program's CDI specs."""
        return DeviceListStrategy.DEVICE_NODES in self.config.strategies or self._writes_specs

    @property
    def _brings_libraries(self) -> bool:
        return self._writes_specs or self.config.strategies == [DeviceListStrategy.DEVICE_NODES]

    @property
    def _writes_specs(self) -> bool:
        return self.config.cdi.write and any(strategy.is_cdi for strategy in self.config.strategies)

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
                # If NVIDIA's runtime is installed, it must not add other devices.
                parts.env.setdefault(_VISIBLE_DEVICES, "void")
                features = self.files.configured_features()
                parts.add_nodes([*self.files.nodes(units), *features.nodes])
                if len(self.config.strategies) == 1:  # otherwise the other strategy provides the rest
                    parts.add_mounts([*self.files.mounts(), *features.mounts])
                    parts.env |= self.files.loader_env(linked=False)
            case DeviceListStrategy.CDI_ANNOTATIONS:
                parts.annotations |= self._annotations(units, [*self.specs.names(self._ids(units)), *limits])
            case DeviceListStrategy.CDI_CRI:
                parts.cdi += [*self.specs.names(self._ids(units)), *limits]

    def _ids(self, units: Sequence[GpuUnit]) -> list[str]:
        """The id of each device, once however many shares of it the container has."""
        devices = [shares[0] for shares in units_by_device(units).values()]
        by_uuid = self.config.ids is DeviceIdStrategy.UUID or bool(self.specs.withheld)
        return [unit.uuid if by_uuid else unit.index for unit in devices]

    def _annotations(self, units: Sequence[GpuUnit], names: Sequence[str]) -> dict[str, str]:
        annotations = cdi.annotation("plugwright-nvidia", digest(unit.id for unit in units), names)
        prefix = self.config.cdi.annotations
        return {prefix + key.partition("/")[2]: text for key, text in annotations.items()}


class _AllocationParts:
    """The parts of one allocation; of two mounts or nodes at the same container path the later wins."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env, self.annotations, self.cdi = env, dict[str, str](), list[str]()
        self._mounts: dict[str, Mount] = {}
        self._nodes: dict[str, DeviceNode] = {}

    def add_mounts(self, mounts: Iterable[Mount]) -> None:
        self._mounts |= {mount.container_path: mount for mount in mounts}

    def add_nodes(self, nodes: Iterable[DeviceNode]) -> None:
        self._nodes |= {node.container_path: node for node in nodes}

    def allocation(self) -> Allocation:
        return Allocation(self.env, self._mounts.values(), self._nodes.values(), self.annotations, self.cdi)
