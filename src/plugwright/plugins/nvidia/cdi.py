"""The CDI specs of GPUs: one file for all devices of the machine, as last read, and one for each set of limits.

The files stay when the daemon ends, because the kubelet uses its stored answers again when a container restarts. A
device that has gone is removed at once: its minor number may soon be another's.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import Allocation
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import NVIDIA_PLUGIN_VENDOR, NvidiaConfig
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.sdk import cdi
from plugwright.sdk.cdi import recreation

__all__ = ["OWNER", "GpuSpecs"]

logger = logging.getLogger(__name__)

OWNER = "plugwright-nvidia"
_VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}  # where NVIDIA's runtime is installed, it must not add devices
_FEATURES = ("gdrcopy", "gds", "mofed")


class GpuSpecs:
    def __init__(self, config: NvidiaConfig, files: DriverFiles) -> None:
        self._config, self._files = config, files
        self._path = Path(config.cdi.dir)
        self._directory = cdi.SpecDirectory(self._path, OWNER)
        self.classes: set[str] = set()  # of names that containers have, whatever is configured by now
        self.withheld: set[str] = set()  # names of GPUs that containers have, and that now are another GPU's

    def write(self, gpus: Sequence[Gpu]) -> None:
        """Updates the files to what the machine has; an unchanged file is not touched."""
        units = [unit for gpu in gpus for unit in (sharing.whole_device(gpu), *_mig_devices(gpu))]
        devices = [device for unit in units for device in self._devices(unit)]
        if devices:
            common = Allocation(env=_VOID, nodes=self._files.control_nodes(), mounts=self._files.mounts())
            self._write(cdi.Spec(self._kind("gpu"), devices, cdi.edits_of(common)))
        else:  # a spec must have a device
            self._directory.file(self._kind("gpu")).unlink(missing_ok=True)
        for feature in self._features():
            nodes = self._files.feature_nodes(feature)
            if nodes:
                edits = cdi.edits_of(Allocation(nodes=nodes))
                self._write(cdi.Spec(self._kind(feature), [cdi.Device("all", edits)]))
        self._write_imex_channels()

    def write_limits(self, name: str, edits: cdi.ContainerEdits) -> str:
        """The qualified name of a CDI device that sets these limits."""
        kind = self._kind("limits")
        self._directory.write(cdi.Spec(kind, [cdi.Device(name, edits)]), part=name)
        return cdi.qualified_name(kind, name)

    def keep_limits(self, stored: Iterable[str], current: Iterable[str]) -> None:
        """Makes limits again under the names that a container has."""
        recreation.keep_names(self._directory, self._kind("limits"), stored, current)

    def unresolved(self, stored: Iterable[str]) -> list[str]:
        """The names of a container that should be in our files and are not."""
        own = [name for name in stored if name.startswith(self._kind(""))]
        return recreation.unresolved(self._directory, own) if self._config.cdi.write else []

    def names(self, ids: Iterable[str]) -> list[str]:
        """The qualified names of these GPUs, and of the configured features that exist.

        A name without a device would fail the container.
        """
        gpus = [cdi.qualified_name(self._kind("gpu"), gpu) for gpu in ids]
        channels = [channel for channel in self._config.imex_channels if self._files.imex_nodes(channel)]
        imex = [cdi.qualified_name(self._kind("imex-channel"), str(channel)) for channel in channels]
        existing = [name for name in self._features() if self._directory.file(self._kind(name)).exists()]
        return [*gpus, *imex, *(cdi.qualified_name(self._kind(name), "all") for name in existing)]

    def _features(self) -> list[str]:
        return [name for name in _FEATURES if getattr(self._config, name) or name in self.classes]

    def _devices(self, unit: GpuUnit) -> list[cdi.Device]:
        """Under its UUID and its index, as NVIDIA's tools name them."""
        try:
            edits = cdi.edits_of(Allocation(nodes=self._files.device_nodes([unit])))
        except PluginError as error:
            logger.warning("no CDI device for a GPU", extra={"gpu": unit.uuid, "error": str(error)})
            return []
        names = [name for name in (unit.uuid, unit.index) if f"{self._kind('gpu')}={name}" not in self.withheld]
        return [cdi.Device(name, edits) for name in names]

    def _write_imex_channels(self) -> None:
        devices = []
        for channel in self._config.imex_channels:
            nodes = self._files.imex_nodes(channel, self._config.imex.required)
            if nodes:
                devices.append(cdi.Device(str(channel), cdi.edits_of(Allocation(nodes=nodes))))
        if devices:
            self._write(cdi.Spec(self._kind("imex-channel"), devices))

    def _write(self, spec: cdi.Spec) -> None:
        """Also removes the file of NVIDIA's plugin, which it leaves behind: a name in two files is unusable."""
        self._directory.write(spec)
        leftover = self._path / f"{spec.kind.replace('/', '-')}.json"
        if self._config.cdi.vendor == NVIDIA_PLUGIN_VENDOR and leftover.exists():
            logger.warning("CDI spec of NVIDIA's plugin replaced by ours", extra={"file": str(leftover)})
            leftover.unlink(missing_ok=True)

    def _kind(self, name: str) -> str:
        return f"{self._config.cdi.vendor}/{name}"


def _mig_devices(gpu: Gpu) -> list[GpuUnit]:
    return [sharing.whole_device(gpu, mig) for mig in gpu.mig]
