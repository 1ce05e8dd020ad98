# ruff: noqa: N802, N815  the names are pynvml's
"""A fake pynvml, which needs no driver: the functions that we call, on GPUs that tests define."""

import ctypes
import queue
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

__all__ = ["Binding", "Card", "NVMLError"]

NOT_SUPPORTED, NOT_FOUND, TIMEOUT, LOST, INVALID = 3, 6, 10, 15, 2
_TEXTS = {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded", 10: "Timeout", 15: "GPU is lost", 18: "Mismatch"}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, f"error {value}"))
        self.value = value


@dataclass(eq=False)
class Card:
    """A GPU. `broken` names functions, or `*` for all, and the error each returns."""

    uuid: str
    bus: int = 1
    links: list[tuple[str, int]] = field(default_factory=list)  # kind of the remote device, its bus
    mig: list[tuple[str, str]] | None = None  # UUID and name of each MIG device
    broken: dict[str, int] = field(default_factory=dict)
    recovery: int = 0
    ecc: int | None = 0
    ecc_sram: int | None = 0  # of these
    fabric: tuple[int, int, int] | None = None  # its state, error and health mask
    computing: list[tuple[int, int | None]] = field(default_factory=list)  # pid, bytes
    drawing: list[tuple[int, int | None]] = field(default_factory=list)
    events: int = 0x8 | 0x2 | 0x100


class FabricInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("state", "status", "healthMask")]


class Binding:
    """The module. `gone` is the error of everything, as when the driver is not loaded."""

    NVMLError = NVMLError
    c_nvmlGpuFabricInfoV_t = FabricInfo

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.gone = 0
        self.nvmlLib: Any = None
        self._nvmlGetFunctionPointer_cache: dict[str, object] = {}
        self.opened = 0
        self.links_read = 0
        self.kinds_read = 0
        self.happening: queue.SimpleQueue[tuple[Card, int, int] | int] = queue.SimpleQueue()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answer = getattr(self, f"_{name}")  # a function that the binding lacks is a function the tests do not need

        def call(*arguments: Any) -> Any:
            self._check(name, *arguments)
            return answer(*arguments)

        return call

    def _check(self, name: str, *arguments: Any) -> None:
        if self.gone:
            raise NVMLError(self.gone)
        card = arguments[0] if arguments and isinstance(arguments[0], Card) else None
        code = card.broken.get(name, card.broken.get("*", 0)) if card else 0
        if code:
            raise NVMLError(code)

    def _nvmlInit(self) -> None:
        self.opened += 1

    def _nvmlShutdown(self) -> None:
        self.opened -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def _nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def _nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._check("nvmlDeviceGetHandleByIndex", self.cards[index])
        return self.cards[index]

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        card = next((card for card in self.cards if card.uuid == uuid), None)
        if card is None:
            raise NVMLError(NOT_FOUND)
        self._check("nvmlDeviceGetHandleByUUID", card)
        return card

    def _nvmlDeviceGetUUID(self, card: Any) -> str:
        return str(card.uuid)

    def _nvmlDeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=card.bus, device=0)

    def _nvmlDeviceGetMemoryInfo(self, _: Card) -> SimpleNamespace:
        return SimpleNamespace(total=80 * 2**30, used=3 * 2**30)

    def _nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in card.computing]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in card.drawing]

    def _nvmlDeviceGetMinorNumber(self, card: Card) -> int:
        return self.cards.index(card)

    def _nvmlDeviceGetName(self, card: Any) -> str:
        return "NVIDIA H200" if isinstance(card, Card) else str(card.name)

    def _nvmlDeviceGetCudaComputeCapability(self, _: Card) -> tuple[int, int]:
        return (9, 0)

    def _nvmlDeviceGetBrand(self, _: Card) -> int:
        self.kinds_read += 1
        return 14

    def _nvmlDeviceGetNumGpuCores(self, _: Card) -> int:
        return 16896

    def _nvmlDeviceGetComputeMode(self, _: Card) -> int:
        return 3

    def _nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [int(card.mig is not None)] * 2

    def _nvmlDeviceGetMaxMigDeviceCount(self, _: Card) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> SimpleNamespace:
        if index >= len(card.mig or ()):
            raise NVMLError(NOT_FOUND)
        uuid, name = (card.mig or [])[index]
        return SimpleNamespace(uuid=uuid, name=name, instance=7 + index)

    def _nvmlDeviceGetAttributes_v2(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(memorySizeMB=9984, multiprocessorCount=16, sharedCopyEngineCount=1, sharedDecoderCount=1)

    def _nvmlDeviceGetGpuInstanceId(self, part: SimpleNamespace) -> int:
        return int(part.instance)

    def _nvmlDeviceGetComputeInstanceId(self, _: object) -> int:
        return 0

    def _nvmlDeviceGetTopologyCommonAncestor(self, *_: Card) -> int:
        self.links_read += 1
        return 20

    def _nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        if link >= len(card.links):
            raise NVMLError(INVALID)
        return int(card.links[link][0] != "off")

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:
        return 2 if card.links[link][0] == "switch" else 0

    def _nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=card.links[link][1], device=0)

    def _nvmlDeviceGetTotalEccErrors(self, card: Card, *_: int) -> int:
        if card.ecc is None:
            raise NVMLError(NOT_SUPPORTED)
        return card.ecc

    def _nvmlDeviceGetMemoryErrorCounter(self, card: Card, *_: int) -> int:
        if card.ecc_sram is None:
            raise NVMLError(NOT_SUPPORTED)
        return card.ecc_sram

    def _nvmlDeviceGetGpuFabricInfoV(self, card: Card, reference: Any) -> int:
        if card.fabric is None:
            raise NVMLError(NOT_SUPPORTED)
        info = reference._obj
        info.state, info.status, info.healthMask = card.fabric
        return 0

    def _nvmlDeviceGetRemappedRows(self, _: Card) -> tuple[int, int, int, int]:
        return (0, 0, 1, 0)

    def _nvmlDeviceGetFieldValues(self, card: Card, _: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=card.recovery))]

    def _nvmlEventSetCreate(self) -> str:
        return "events"

    def _nvmlEventSetFree(self, _: object) -> None:
        return None

    def _nvmlDeviceGetSupportedEventTypes(self, card: Card) -> int:
        return card.events

    def _nvmlDeviceRegisterEvents(self, *_: object) -> None:
        return None

    def _nvmlEventSetWait_v2(self, _: object, milliseconds: int) -> SimpleNamespace:
        try:
            event = self.happening.get(timeout=milliseconds / 1000)
        except queue.Empty:
            raise NVMLError(TIMEOUT) from None
        if isinstance(event, int):
            raise NVMLError(event)
        card, kind, code = event
        none = 0xFFFFFFFF
        return SimpleNamespace(device=card, eventType=kind, eventData=code, gpuInstanceId=none, computeInstanceId=none)
