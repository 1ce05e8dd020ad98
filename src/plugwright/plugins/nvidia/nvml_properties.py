"""Constant properties of GPUs, and the MIG devices of a GPU, read through NVIDIA's management library.

They are only used for selection by claims, so an unreadable property is not a fault of the GPU.
"""

import msgspec

from plugwright.plugins.nvidia.driver import MigDevice
from plugwright.plugins.nvidia.nvml_library import NvmlCalls
from plugwright.text import clean

__all__ = ["GpuKind", "GpuKinds", "mig_devices"]

_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
_CORES_SINCE_AMPERE = 128  # of one multiprocessor: Maxwell's number too
_CORES = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_ENGINES = {
    "copyEngines": "sharedCopyEngineCount",
    "decoders": "sharedDecoderCount",
    "encoders": "sharedEncoderCount",
    "jpegEngines": "sharedJpegCount",
    "ofaEngines": "sharedOfaCount",
}


class GpuKind(msgspec.Struct, frozen=True):
    brand: str = ""
    cores: int = 0

    def multiprocessors(self, capability: tuple[int, int]) -> int:
        return self.cores // _CORES.get(capability, _CORES_SINCE_AMPERE)


class GpuKinds:
    """The kinds of GPUs, read once for each GPU."""

    def __init__(self) -> None:
        self._known: dict[str, GpuKind] = {}  # by UUID

    def of(self, calls: NvmlCalls, handle: object, uuid: str) -> GpuKind:
        if uuid not in self._known:
            faults, lost = list(calls.faults), calls.lost
            brand, cores = (calls.lookup(name, handle) for name in ("nvmlDeviceGetBrand", "nvmlDeviceGetNumGpuCores"))
            if len(calls.faults) == len(faults):
                self._known[uuid] = GpuKind(_BRANDS.get(brand, ""), cores or 0)
            calls.faults, calls.lost = faults, lost
        return self._known.get(uuid, GpuKind())


def mig_devices(calls: NvmlCalls, handle: object) -> tuple[MigDevice, ...]:
    count = calls.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    handles = [calls.lookup("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(count)]
    devices = [_mig_device(calls, mig, index) for index, mig in enumerate(handles) if mig is not None]
    return tuple(device for device in devices if device is not None)


def _mig_device(calls: NvmlCalls, handle: object, index: int) -> MigDevice | None:
    uuid = calls.optional("nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    attributes = calls.optional("nvmlDeviceGetAttributes_v2", handle)
    name = clean(calls.optional("nvmlDeviceGetName", handle) or "")
    return MigDevice(
        uuid=uuid,
        index=index,
        profile=name.rpartition("MIG ")[2],  # NVIDIA A100-SXM4-40GB MIG 1g.5gb
        memory=attributes.memorySizeMB * 2**20 if attributes else 0,
        gpu_instance=calls.optional("nvmlDeviceGetGpuInstanceId", handle) or 0,
        compute_instance=calls.optional("nvmlDeviceGetComputeInstanceId", handle) or 0,
        multiprocessors=getattr(attributes, "multiprocessorCount", 0),
        engines={name: getattr(attributes, key) for name, key in _ENGINES.items() if hasattr(attributes, key)},
    )
