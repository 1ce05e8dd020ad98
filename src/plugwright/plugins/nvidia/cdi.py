"""The CDI specs of GPUs: one file for all devices of the last read, and one for each set of limits.

The files stay when the daemon ends, because the kubelet reuses its stored answers when a container restarts. A missing
device is removed immediately, because its minor number could soon be another's. GPUs shared by vgpu also have names in
a separate class: CUDA's forward compatibility in the others would load another libcuda before the limiter.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from plugwright.errors import PluginError
from plugwright.model import Allocation
from plugwright.plugins.nvidia import hooks, sharing
from plugwright.plugins.nvidia.config import NVIDIA_PLUGIN_VENDOR, NvidiaConfig, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, digest
from plugwright.plugins.nvidia.driver_files import FEATURES, DriverFiles
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.sdk import cdi
from plugwright.sdk.cdi import recreation

__all__ = ["OWNER", "GpuSpecs"]

logger = logging.getLogger(__name__)

OWNER = "plugwright-nvidia"
_WHOLE, _LIMITED = "gpu", "vgpu"  # the classes in the names of GPUs
_VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}  # if NVIDIA's runtime is installed, it must not add devices
_NONE = cdi.ContainerEdits()
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


class GpuSpecs:
    def __init__(self, config: NvidiaConfig, files: DriverFiles) -> None:
        self._config, self._files = config, files
        limited = config.share is not None and config.share.by is SharingStrategy.VGPU
        self._class = _LIMITED if limited else _WHOLE
        self._path = Path(config.cdi.dir)
        self._directory = cdi.SpecDirectory(self._path, OWNER)
        self.classes: set[str] = set()  # of names in use by containers, whatever is configured now
        self.withheld: set[str] = set()  # names in use by containers that now belong to another GPU
        self._programs: list[hooks.HookProgram | None] = []  # the program found last
        self._limits: dict[str, Path] = {}  # limit files written since the last `write`, by name

    def hook_program(self) -> hooks.HookProgram | None:
        """The hook program as of the last `write`: replacements in an allocation must match the spec."""
        if not self._programs:
            self._programs = [hooks.find(self._config)]
        return self._programs[0]

    def write(self, gpus: Sequence[Gpu]) -> None:
        """Updates the files for the machine's devices; does not touch an unchanged file.

        PluginError if a file for every container is missing: the files then stay unchanged.
        """
        self._programs = [program := hooks.find(self._config)]
        self._limits = {}
        units = [unit for gpu in gpus for unit in (sharing.whole_device(gpu), *_mig_devices(gpu))]
        for name in dict.fromkeys((_WHOLE, self._class, *sorted(self.classes & {_LIMITED}))):
            devices = [device for unit in units for device in self._devices(name, unit, program)]
            self._write(cdi.Spec(self._kind(name), devices, self._common_edits(name, program) if devices else _NONE))
        for name in self._features():
            feature = self._files.feature(name)
            if feature.nodes:
                self._write(cdi.Spec(self._kind(name), [cdi.Device("all", cdi.edits_of(feature))]))
        self._write_imex_channels()

    def write_limits(self, env: Mapping[str, str], libraries: Mapping[str, str]) -> list[str]:
        """The qualified name of a CDI device with these limits, if any; limits named after a GPU override it.

        `libraries` are the host's replacements for the driver's files, by soname.
        """
        if not env and not libraries:
            return []  # as for nearly every allocation: making empty edits takes as long as the rest
        texts = [f"{name}={text}" for name, text in (*env.items(), *libraries.items())]
        kind, name = self._kind("limits"), digest(texts)
        if name not in self._limits or not self._limits[name].exists():
            mounts = self._files.replacements(libraries, self.hook_program() is not None) if libraries else []
            edits = cdi.edits_of(Allocation(env=env, mounts=mounts))
            if not edits:
                return []
            self._limits[name] = self._directory.write(cdi.Spec(kind, [cdi.Device(name, edits)]), part=name)
        return [cdi.qualified_name(kind, name)]

    def keep_limits(self, stored: Iterable[str], current: Iterable[str]) -> None:
        """Recreates limits under the names given to a container."""
        recreation.keep_names(self._directory, self._kind("limits"), stored, current)

    def unresolved(self, stored: Iterable[str]) -> list[str]:
        """The names of a container missing from our files."""
        own = [name for name in stored if name.startswith(self._kind(""))]
        return recreation.unresolved(self._directory, own) if self._config.cdi.write else []

    def names(self, ids: Iterable[str]) -> list[str]:
        """The qualified names of these GPUs, and of the existing configured features.

        A name without a device would make the container fail.
        """
        gpus = [cdi.qualified_name(self._kind(self._class), gpu) for gpu in ids]
        channels = [channel for channel in self._config.imex_channels if self._files.imex_nodes(channel)]
        imex = [cdi.qualified_name(self._kind("imex-channel"), str(channel)) for channel in channels]
        existing = [name for name in self._features() if self._directory.file(self._kind(name)).exists()]
        return [*gpus, *imex, *(cdi.qualified_name(self._kind(name), "all") for name in existing)]

    def _common_edits(self, name: str, program: hooks.HookProgram | None) -> cdi.ContainerEdits:
        files, libraries = self._files, self._files.libraries
        linked = program is not None
        mounts = (*files.mounts(linked), *files.firmware())
        env = {**_VOID, **files.loader_env(linked)}
        edits = cdi.edits_of(Allocation(env=env, nodes=files.control_nodes(), mounts=mounts))
        sockets = [cdi.Mount(mount.host_path, mount.container_path, "", _SOCKET_OPTIONS) for mount in files.sockets()]
        edits = replace(edits, mounts=(*edits.mounts, *sockets))
        if program is None:
            return edits
        compat = "" if name == _LIMITED else libraries.tree().version
        return replace(edits, hooks=program.common(libraries.directories(linked), libraries.links(), compat))

    def _features(self) -> list[str]:
        return [name for name in FEATURES if getattr(self._config, name) or name in self.classes]

    def _devices(self, name: str, unit: GpuUnit, program: hooks.HookProgram | None) -> list[cdi.Device]:
        """The devices under UUID and index, as NVIDIA's tools name them."""
        try:
            edits = cdi.edits_of(Allocation(nodes=self._files.device_nodes([unit])))
            if program is not None:
                edits = replace(edits, hooks=program.links(self._files.drm_links(unit)))
        except PluginError:
            return []  # the device is Unhealthy for the same reason
        ids = [id_ for id_ in (unit.uuid, unit.index) if f"{self._kind(name)}={id_}" not in self.withheld]
        return [cdi.Device(id_, edits) for id_ in ids]

    def _write_imex_channels(self) -> None:
        devices = []
        for channel in self._config.imex_channels:
            nodes = self._files.imex_nodes(channel, self._config.imex.required)
            if nodes:
                devices.append(cdi.Device(str(channel), cdi.edits_of(Allocation(nodes=nodes))))
        if devices:
            self._write(cdi.Spec(self._kind("imex-channel"), devices))

    def _write(self, spec: cdi.Spec) -> None:
        """Also removes the file left behind by NVIDIA's plugin, because a name in two files is unusable."""
        self._directory.write(spec)
        leftover = self._path / f"{spec.kind.replace('/', '-')}.json"
        if self._config.cdi.vendor == NVIDIA_PLUGIN_VENDOR and leftover.exists():
            logger.warning("CDI spec of NVIDIA's plugin replaced by ours", extra={"file": str(leftover)})
            leftover.unlink(missing_ok=True)

    def _kind(self, name: str) -> str:
        return f"{self._config.cdi.vendor}/{name}"


def _mig_devices(gpu: Gpu) -> list[GpuUnit]:
    return [sharing.whole_device(gpu, mig) for mig in gpu.mig]
