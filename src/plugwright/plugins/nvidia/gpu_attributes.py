"""The attributes by which claims select GPUs and MIG devices: our own, and those of NVIDIA's DRA driver.

NVIDIA's names are qualified with the name of its driver, so its users' selectors find them unchanged. Unknown
values are omitted, because an empty value would match another device's empty value. Texts are cut off at the limit of
claims.
"""

import re
from collections.abc import Mapping

from plugwright.attributes import Consumption, CounterSet, Version
from plugwright.plugins.nvidia.driver import Gpu, MigDevice, digest
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["device_attributes", "of_share", "shared_counters", "version", "whole_capacity"]

_NVIDIA = "gpu.nvidia.com"  # the name of NVIDIA's driver
_TEXT_LIMIT = 64  # bytes
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")


def device_attributes(unit: GpuUnit, driver: str, cuda: str) -> dict[str, object]:
    """The attributes of a whole GPU or MIG device; `driver` and `cuda` are the versions of the machine."""
    return {**_own_attributes(unit), "uuid": unit.uuid, **_nvidia_attributes(unit, driver, cuda), **unit.gpu.standard}


def of_share(unit: GpuUnit) -> dict[str, object]:
    """Attributes only for `plugwright status`: claims do not use shares, of which there can be thousands."""
    return {**_own_attributes(unit), "memory": unit.memory, "percent": unit.percent}


def whole_capacity(unit: GpuUnit) -> dict[str, int]:
    """The capacity of an exclusive device of a claim."""
    mig = unit.mig
    processors = mig.multiprocessors if mig else unit.gpu.multiprocessors
    own = {"memory": unit.memory, "multiprocessors": processors}
    nvidia = {"memory": unit.memory, **({"multiprocessors": processors, **mig.engines} if mig else {})}
    capacity = own | {f"{_NVIDIA}/{name}": amount for name, amount in nvidia.items()}
    return {name: amount for name, amount in capacity.items() if amount}


def shared_counters(unit: GpuUnit) -> tuple[Consumption, ...]:
    """A device's consumption of its card with MIG devices: the whole card and a part exclude each other.

    Existing MIG devices can be used together, so the card has at least their sum.
    """
    gpu = unit.gpu
    parts = {mig.uuid: _taken(gpu, mig) for mig in gpu.mig}
    whole = {"memory": gpu.memory, "multiprocessors": gpu.multiprocessors}
    totals = {name: max(amount, sum(part[name] for part in parts.values())) for name, amount in whole.items()}
    totals = {name: amount for name, amount in totals.items() if amount}
    if not parts or not totals:
        return ()
    taken = totals if unit.mig is None else {name: parts[unit.mig.uuid][name] for name in totals}
    return (Consumption(CounterSet(f"gpu-{digest([gpu.uuid], 8)}", totals), taken),)


def version(text: str) -> Version | None:
    """`535.104.05` as 535.104.5 and `13.0` as 13.0.0; None for texts without such numbers."""
    matched = _NUMBERS.match(text)
    if not matched:
        return None
    numbers = [int(number) for number in matched[0].split(".")]
    return Version(".".join(map(str, [*numbers, 0, 0][:3])))


def _own_attributes(unit: GpuUnit) -> dict[str, object]:
    texts = {
        "index": unit.index,
        "model": unit.gpu.model,
        "pci": unit.gpu.pci,
        "gpu": unit.gpu.uuid,
        "compute_mode": str(unit.gpu.compute_mode),
        "profile": unit.mig.profile if unit.mig else "",
    }
    return {name: _fitting(text) for name, text in texts.items() if text}


def _nvidia_attributes(unit: GpuUnit, driver: str, cuda: str) -> Mapping[str, object]:
    gpu, mig = unit.gpu, unit.mig
    capability = ".".join(map(str, gpu.capability)) if gpu.capability != (0, 0) else ""
    attributes: dict[str, object] = {
        "type": "mig" if mig else "gpu",
        "uuid": unit.uuid,
        "productName": _fitting(gpu.model),
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": version(capability),
        "driverVersion": version(driver),
        "cudaDriverVersion": version(cuda),
        "parentUUID": gpu.uuid if mig else "",
        "profile": _fitting(mig.profile) if mig else "",
    }
    return {f"{_NVIDIA}/{name}": value for name, value in attributes.items() if value}


def _taken(gpu: Gpu, mig: MigDevice) -> Mapping[str, int]:
    """The counters of a MIG device; compute instances of one GPU instance share its memory."""
    instances = sum(other.gpu_instance == mig.gpu_instance for other in gpu.mig)
    return {"memory": mig.memory // instances, "multiprocessors": mig.multiprocessors}


def _fitting(text: str) -> str:
    return text.encode()[:_TEXT_LIMIT].decode(errors="ignore")
