"""CDI specs for GPUs: one file for all devices of the machine, as it was last read, and one for each set of limits.

They stay when we end, because the kubelet uses its stored answers again when a container restarts. A device that is no
longer there is taken out at once: its node's number may be another's by then.
"""

import logging
from collections.abc import Iterable, Sequence

from plugwright.errors import PluginError
from plugwright.model import Allocation
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import PEER, Features
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.driver_files import Files
from plugwright.plugins.nvidia.sharing import Unit
from plugwright.sdk import cdi

__all__ = ["OWNER", "Specs"]

logger = logging.getLogger(__name__)

OWNER = "plugwright-nvidia"
_VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}  # NVIDIA's runtime, where it is, has nothing to add
_CLASSES = ("gdrcopy", "gds", "mofed")


class Specs:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._vendor = files.places.vendor
        self._directory = cdi.SpecDirectory(files.places.cdi, OWNER)

    def write(self, gpus: Sequence[Gpu], features: Features) -> None:
        """Makes the files say what the machine has; a file that is right already is left alone."""
        devices = [device for gpu in gpus for unit in _units(gpu) for device in self._devices(unit)]
        if devices:
            self._put(cdi.Spec(self._kind("gpu"), devices, self._for_all()))
        else:  # the last one is gone, and a spec without any cannot be
            self._directory.file(self._kind("gpu")).unlink(missing_ok=True)
        for name in _CLASSES:
            if getattr(features, name):
                self._write_feature(name)
        self._write_channels(features)

    def write_limits(self, name: str, edits: cdi.ContainerEdits) -> str:
        """The qualified name of a CDI device that sets these limits."""
        kind = self._kind("limits")
        self._directory.write(cdi.Spec(kind, [cdi.Device(name, edits)]), part=name)
        return cdi.qualified_name(kind, name)

    def names_of(self, ids: Iterable[str]) -> list[str]:
        return [cdi.qualified_name(self._kind("gpu"), each) for each in ids]

    def feature_names(self, features: Features) -> list[str]:
        """Only of what there is: a name that no file has fails the container."""
        channels = [f"channel{each}" for each in features.imex if self._files.imex_nodes(Features(imex=(each,)))]
        names = [cdi.qualified_name(self._kind("imex-channel"), each.removeprefix("channel")) for each in channels]
        wanted = [name for name in _CLASSES if getattr(features, name)]
        found = [name for name in wanted if self._directory.file(self._kind(name)).exists()]
        return names + [cdi.qualified_name(self._kind(name), "all") for name in found]

    def _devices(self, unit: Unit) -> list[cdi.Device]:
        """Under its UUID and its index, as NVIDIA's tools name them."""
        try:
            edits = cdi.edits_of(Allocation(nodes=self._files.device_nodes([unit])))
        except PluginError as error:
            logger.warning("no CDI device for a GPU", extra={"gpu": unit.uuid, "error": str(error)})
            return []
        return [cdi.Device(name, edits) for name in (unit.uuid, unit.index)]

    def _for_all(self) -> cdi.ContainerEdits:
        return cdi.edits_of(Allocation(env=_VOID, nodes=self._files.control_nodes(), mounts=self._files.mounts()))

    def _write_feature(self, name: str) -> None:
        nodes = self._files.nodes_for(name)
        if nodes:
            edits = cdi.edits_of(Allocation(nodes=nodes))
            self._put(cdi.Spec(self._kind(name), [cdi.Device("all", edits)]))

    def _write_channels(self, features: Features) -> None:
        devices = []
        for channel in features.imex:
            nodes = self._files.imex_nodes(Features(imex=(channel,), imex_required=features.imex_required))
            if nodes:
                devices.append(cdi.Device(str(channel), cdi.edits_of(Allocation(nodes=nodes))))
        if devices:
            self._put(cdi.Spec(self._kind("imex-channel"), devices))

    def _put(self, spec: cdi.Spec) -> None:
        """NVIDIA's plugin leaves its files behind, and a name that two files have is unusable in both."""
        self._directory.write(spec)
        left = self._files.places.cdi / f"{spec.kind.replace('/', '-')}.json"
        if self._vendor == PEER and left.exists():
            logger.warning("CDI spec of NVIDIA's plugin replaced by ours", extra={"file": str(left)})
            left.unlink(missing_ok=True)

    def _kind(self, of: str) -> str:
        return f"{self._vendor}/{of}"


def _units(gpu: Gpu) -> list[Unit]:
    return [sharing.whole(gpu), *(sharing.whole(gpu, mig) for mig in gpu.mig)]
