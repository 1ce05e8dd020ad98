"""Node labels about GPUs, as NVIDIA's GPU feature discovery (GFD) names them, through node-feature-discovery (NFD).

NFD makes labels from the lines in its directory `features.d`, so the daemon needs no access to the API. Each resource
has its own file there, made from the same read of the machine as its device list, and removed when the resource is no
longer served. Failed writes are logged: devices are served without labels.
"""

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from plugwright.plugins.nvidia.config import MigStrategy, NvidiaConfig, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, GpuSnapshot
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.system import files
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["NodeLabels", "machine_labels", "resource_labels"]

logger = logging.getLogger(__name__)

_PREFIX = "nvidia.com/"
_PLAIN_NAMES = re.compile(r"nvidia\.com/(gpu|mig-.+)")  # names for which GFD marks a shared product
_LONGEST = 63
_MIB = 2**20
_NOT_IN_VALUES = re.compile(r"[^A-Za-z0-9_.-]+")
_SLICES = re.compile(r"(?:(\d+)c\.)?(\d+)g\.")
_GRAPHICS, _COMPUTE = "0x0300", "0x0302"  # PCI classes
_MIG_CAPABLE = ((8, 0), (9, 0), (10, 0), (10, 3))  # data-centre GPUs since the A100


class NodeLabels:
    """The file of one resource; there is none without a configured directory."""

    def __init__(self, resource: str, config: NvidiaConfig, sys: Path = Path("/sys")) -> None:
        self._resource, self._config, self._sys = resource, config, sys
        self._path = Path(config.labels, f"plugwright-{resource.replace('/', '_')}") if config.labels else None
        self._written: dict[str, str] | None = None
        self._problems = LogOnce(logger)
        self._is_open = False
        self._writing = threading.Lock()  # a thread can still be making a list when the resource ends

    def begin(self) -> None:
        """Starts writing the file."""
        self._is_open = True

    def end(self) -> None:
        """Removes the file, because the resource is no longer served."""
        with self._writing:
            self._is_open = False
            if self._path is not None and self._written is not None:
                with suppress(OSError):
                    self._path.unlink()
                self._written = None

    def update(self, snapshot: GpuSnapshot, whole: Sequence[GpuUnit], units: Sequence[GpuUnit]) -> None:
        """Updates the file. `whole` are the devices of the resource, `units` the offered units."""
        if self._path is None:
            return
        labels = machine_labels(snapshot, self._config, self._sys)
        labels |= resource_labels(self._resource, self._config, whole, units)
        labels |= {f"{self._resource}.mode": _mode(self._sys, whole[0].gpu)} if whole else {}
        with self._writing:
            if self._is_open and labels != self._written:
                self._write(self._path, labels)

    def _write(self, path: Path, labels: dict[str, str]) -> None:
        try:
            files.write_atomically(path, "".join(f"{key}={labels[key]}\n" for key in sorted(labels)))
        except OSError as error:
            facts = {"resource": self._resource, "path": str(path), "error": clean(error)}
            self._problems.warning("node labels cannot be written", str(error), extra=facts)
        else:
            self._written = labels
            self._problems.recovered()


def machine_labels(snapshot: GpuSnapshot, config: NvidiaConfig, sys: Path) -> dict[str, str]:
    """The labels common to all resources of a machine."""
    labels = {
        "gpu.machine": _value(_read(sys / "class/dmi/id/product_name")) or "unknown",
        "mig.capable": _flag(any(gpu.mig_enabled or gpu.capability in _MIG_CAPABLE for gpu in snapshot.gpus)),
        "mps.capable": _flag(config.share is not None and config.share.by is SharingStrategy.MPS),
    }
    if config.mig is not MigStrategy.NONE:
        labels["mig.strategy"] = config.mig.value
    driver, cuda = snapshot.driver.split("."), snapshot.cuda.split(".")
    if all(part.isdecimal() for part in driver):
        parts = dict(zip(("major", "minor", "revision"), driver, strict=False))
        labels |= {f"cuda.driver-version.{name}": number for name, number in parts.items()}
        labels["cuda.driver-version.full"] = snapshot.driver
        labels |= {f"cuda.driver.{name[:3] if name == 'revision' else name}": text for name, text in parts.items()}
    if all(part.isdecimal() for part in cuda):
        parts = dict(zip(("major", "minor"), cuda, strict=False))
        labels |= {f"cuda.runtime-version.{name}": number for name, number in parts.items()}
        labels["cuda.runtime-version.full"] = snapshot.cuda
        labels |= {f"cuda.runtime.{name}": number for name, number in parts.items()}
    return {_PREFIX + name: text for name, text in labels.items()}


def resource_labels(
    resource: str, config: NvidiaConfig, whole: Sequence[GpuUnit], units: Sequence[GpuUnit]
) -> dict[str, str]:
    """The labels of one resource, prefixed with its name. Of different models the first one counts."""
    if not whole:
        return {f"{resource}.count": "0"}
    first, share = whole[0], config.share
    labels = {
        "product": _product(resource, config, first),
        "count": str(len(whole)),
        "replicas": str(len(units) // len(whole)),
        "sharing-strategy": share.by.value if share else "none",
        "family": first.gpu.architecture.lower().replace(" ", "-") or "undefined",
        "compute.major": str(first.gpu.capability[0]),
        "compute.minor": str(first.gpu.capability[1]),
    }
    if first.memory:
        labels["memory"] = str(first.memory // _MIB)
    if first.mig:
        labels |= _slices(first.mig.profile)
    return {f"{resource}.{name}": text for name, text in labels.items()}


def _product(resource: str, config: NvidiaConfig, unit: GpuUnit) -> str:
    """The product. If it is too long, the model is cut off: the suffix tells what a pod gets."""
    suffix = f"-MIG-{unit.mig.profile}" if unit.mig else ""
    suffix += "-SHARED" if config.share and _PLAIN_NAMES.fullmatch(resource) else ""
    suffix = _NOT_IN_VALUES.sub(".", suffix)
    return _value(_value(unit.gpu.model)[: _LONGEST - len(suffix)].rstrip("_.-") + suffix)


def _slices(profile: str) -> Mapping[str, str]:
    match = _SLICES.match(profile)
    return {"slices.gi": match[2], "slices.ci": match[1] or match[2]} if match else {}


def _mode(sys: Path, gpu: Gpu) -> str:
    kind = _read(sys / "bus/pci/devices" / gpu.pci.lower() / "class")[: len(_COMPUTE)]
    return {_GRAPHICS: "graphics", _COMPUTE: "compute"}.get(kind, "unknown")


def _value(text: str) -> str:
    """A valid label value: other characters become `-`, and the ends are letters or digits."""
    return _NOT_IN_VALUES.sub("-", text)[:_LONGEST].strip("_.-")


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
