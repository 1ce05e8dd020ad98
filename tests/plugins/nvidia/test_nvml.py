"""The NVML driver with a fake binding: an error of one GPU does not affect the others."""

from pathlib import Path

import pytest
from tests.plugins.nvidia.binding import LOST, NOT_SUPPORTED, Binding, Card
from tests.plugins.nvidia.harness import INTERVALS, listing, resource
from tests.sdk.actors import recorded_log

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.config import NvidiaHealth
from plugwright.plugins.nvidia.driver import (
    ComputeMode,
    DriverLoad,
    EventKind,
    Gpu,
    GpuEvent,
    GpuLink,
    GpuProcess,
    GpuUse,
    PcieLevel,
    RecoveryAction,
)
from plugwright.plugins.nvidia.health import assess
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import KernelPaths, Nvml


def cards(count: int) -> list[Card]:
    return [Card(f"GPU-{index}", bus=index + 1) for index in range(count)]


GIB = 2**30
NOWHERE = Path("/nowhere")
INFORMATION = (
    "Model: \t\t NVIDIA H200\nIRQ:   \t\t 36\nGPU UUID: \t {}\nBus Location: \t 0000:5d:00.0\nDevice Minor: \t 4\n"
)


def driver(binding: Binding, sys: Path = NOWHERE, proc: Path = NOWHERE) -> Nvml:
    return Nvml(paths=KernelPaths(proc, sys), binding=lambda: binding)


def test_a_gpu_is_read_with_all_its_values(tmp_path: Path) -> None:
    node = tmp_path / "bus/pci/devices/0000:01:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    snapshot = driver(Binding(*cards(1)), tmp_path).read()
    [gpu] = snapshot.gpus
    assert (snapshot.driver, snapshot.cuda) == ("580.1", "13.0")
    assert (gpu.uuid, gpu.minor, gpu.model, gpu.memory) == ("GPU-0", 0, "NVIDIA H200", 80 * 2**30)
    assert (gpu.pci, gpu.numa, gpu.capability) == ("0000:01:00.0", 1, (9, 0))
    assert (gpu.compute_mode, gpu.mig_enabled, gpu.fault) == (ComputeMode.EXCLUSIVE_PROCESS, False, "")


def test_a_gpu_is_read_with_what_claims_select_by(tmp_path: Path) -> None:
    function = tmp_path / "devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    function.mkdir(parents=True)
    (function / "numa_node").write_text("1\n")
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:01:00.0").symlink_to(function)
    binding = Binding(*cards(1))
    nvml = driver(binding, tmp_path)
    [gpu] = nvml.read().gpus
    assert (gpu.brand, gpu.architecture, gpu.multiprocessors) == ("Nvidia", "Hopper", 132)
    assert gpu.standard == {
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
    }
    nvml.read()
    assert binding.kinds_read == 1


@pytest.mark.parametrize("error", [NOT_SUPPORTED, LOST])
def test_a_gpu_whose_kind_cannot_be_read_has_no_fault_for_it(error: int) -> None:
    [card] = cards(1)
    card.broken = {"nvmlDeviceGetBrand": error}
    nvml = driver(Binding(card))
    [gpu] = nvml.read().gpus
    assert (gpu.brand, gpu.fault) == ("", "")
    card.broken = {}
    assert nvml.read().gpus[0].brand == ("" if error == NOT_SUPPORTED else "Nvidia")


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [((7, 0), "Volta"), ((7, 5), "Turing"), ((8, 6), "Ampere"), ((8, 9), "Ada Lovelace"), ((12, 0), "Blackwell")],
)
def test_the_architecture_follows_from_the_compute_capability(capability: tuple[int, int], architecture: str) -> None:
    assert Gpu(uuid="GPU-0", index=0, capability=capability).architecture == architecture
    assert Gpu(uuid="GPU-0", index=0).architecture == ""


@pytest.mark.parametrize("text", ["-1\n", "what?", None])
def test_a_gpu_without_a_numa_node_has_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        node = tmp_path / "bus/pci/devices/0000:01:00.0/numa_node"
        node.parent.mkdir(parents=True)
        node.write_text(text)
    assert driver(Binding(*cards(1)), tmp_path).read().gpus[0].numa is None


def test_mig_devices_are_read() -> None:
    card = Card("GPU-0", mig=[("MIG-a", "NVIDIA H200 MIG 1g.18gb"), ("MIG-b", "NVIDIA H200 MIG 1g.18gb+me")])
    [gpu] = driver(Binding(card)).read().gpus
    assert [(part.uuid, part.index, part.profile, part.gpu_instance) for part in gpu.mig] == [
        ("MIG-a", 0, "1g.18gb", 7),
        ("MIG-b", 1, "1g.18gb+me", 8),
    ]
    assert (gpu.mig[0].memory, gpu.mig[0].multiprocessors) == (9984 * 2**20, 16)
    assert gpu.mig[0].engines == {"copyEngines": 1, "decoders": 1}


def test_links_are_counted_direct_and_through_switches() -> None:
    one, two, three = cards(3)
    one.links = [("gpu", 2), ("gpu", 2), ("off", 0), ("switch", 9)]
    two.links = [("gpu", 1), ("gpu", 1), ("switch", 9), ("switch", 9)]
    links = driver(Binding(one, two, three)).read().links
    assert links.between("GPU-1", "GPU-0") == GpuLink(PcieLevel.PXB, 3)
    assert links.between("GPU-0", "GPU-2") == GpuLink(PcieLevel.PXB, 0)


def test_links_are_read_once_and_again_when_gpus_change() -> None:
    binding = Binding(*cards(3))
    nvml = driver(binding)
    nvml.read()
    nvml.read()
    assert binding.links_read == 3
    binding.cards.pop()
    nvml.read()
    assert binding.links_read == 4


def test_an_error_of_one_gpu_is_its_fault_alone() -> None:
    binding = Binding(*cards(3))
    binding.cards[1].broken = {"nvmlDeviceGetName": LOST}
    snapshot = driver(binding).read()
    assert [gpu.fault for gpu in snapshot.gpus] == ["", "GPU is lost", ""]


def test_a_lost_gpu_keeps_its_last_values() -> None:
    binding = Binding(*cards(2))
    nvml = driver(binding)
    nvml.read()
    binding.cards[1].broken = {"*": LOST}
    lost = nvml.read().gpus[1]
    assert (lost.uuid, lost.model, lost.fault) == ("GPU-1", "NVIDIA H200", "GPU is lost")
    assert nvml.health("GPU-1").fault == "GPU is lost"


def test_a_gpu_that_was_never_read_is_counted() -> None:
    binding = Binding(*cards(2))
    binding.cards[1].broken = {"*": LOST}
    snapshot = driver(binding).read()
    assert ([gpu.uuid for gpu in snapshot.gpus], snapshot.unread) == (["GPU-0"], 1)


@pytest.mark.parametrize(("uuid", "known"), [("GPU-9", True), ("GPU-????????-????-????-????-????????????", False)])
def test_a_gpu_that_was_never_read_is_listed_if_the_kernel_knows_it(tmp_path: Path, uuid: str, known: bool) -> None:
    for address, gpu_uuid in (("0000:01:00.0", "GPU-0"), ("0000:5D:00.0", uuid)):
        path = tmp_path / "driver/nvidia/gpus" / address / "information"
        path.parent.mkdir(parents=True)
        path.write_text(INFORMATION.format(gpu_uuid))
    binding = Binding(*cards(2))
    binding.cards[1].broken = {"*": LOST}
    snapshot = driver(binding, proc=tmp_path).read()
    assert snapshot.unread == (0 if known else 1)
    if known:
        gpu = snapshot.gpus[1]
        assert (gpu.uuid, gpu.index, gpu.minor, gpu.pci) == ("GPU-9", 1, 4, "0000:5d:00.0")
        assert gpu.fault == "NVIDIA's library cannot read it"


def test_an_unsupported_call_is_no_fault() -> None:
    [card] = cards(1)
    card.ecc = None
    card.broken = {"nvmlDeviceGetMigMode": NOT_SUPPORTED, "nvmlDeviceGetFieldValues": NOT_SUPPORTED}
    nvml = driver(Binding(card))
    assert nvml.read().gpus[0].fault == ""
    values = nvml.health("GPU-0")
    assert (values.ecc_uncorrected, values.recovery, values.remap_pending, values.fault) == (
        None,
        RecoveryAction.UNKNOWN,
        True,
        "",
    )


def test_the_recovery_action_is_read() -> None:
    [card] = cards(1)
    card.recovery = 1
    assert driver(Binding(card)).health("GPU-0").recovery is RecoveryAction.RESET
    assert driver(Binding(card)).health("GPU-9").fault == "Not Found"


def test_a_missing_driver_raises_and_is_opened_again() -> None:
    binding = Binding(*cards(1))
    binding.gone = 9
    nvml = driver(binding)
    with pytest.raises(DriverGone, match="Driver Not Loaded"):
        nvml.read()
    binding.gone = 0
    assert len(nvml.read().gpus) == 1
    binding.gone = 18
    with pytest.raises(DriverGone, match="Mismatch"):
        nvml.read()
    binding.gone = 0
    nvml.close()
    assert (binding.opened, len(nvml.read().gpus)) == (0, 1)


@pytest.mark.parametrize(("code", "unloaded"), [(9, True), (12, True), (4, False), (18, False), (999, False)])
def test_only_an_unloaded_driver_counts_as_a_reset(code: int, unloaded: bool) -> None:
    """Else a GPU that needs a reset would be taken for one that had it."""
    binding = Binding(*cards(1))
    binding.gone = code
    with pytest.raises(DriverGone) as gone:
        driver(binding).read()
    assert gone.value.unloaded is unloaded


def test_events_are_received_and_keep_the_library_loaded() -> None:
    binding = Binding(*cards(2))
    nvml = driver(binding)
    events = nvml.events(("GPU-0", "GPU-1"))
    assert (set(events.watched), events.unwatched) == ({"GPU-0", "GPU-1"}, {})
    binding.happening.put((binding.cards[1], 0x8, 79))
    binding.happening.put((binding.cards[0], 0x100, 0))
    assert events.wait(1) == GpuEvent(EventKind.XID, "GPU-1", 79)
    assert events.wait(1) == GpuEvent(EventKind.MIG_CHANGED, "GPU-0")
    assert events.wait(0.001) is None
    nvml.close()
    assert binding.opened == 1
    events.close()
    assert binding.opened == 0


def test_a_gpu_without_events_is_neither_watched_nor_unwatched() -> None:
    one, two, three = cards(3)
    one.events = 0
    two.broken = {"nvmlDeviceGetSupportedEventTypes": NOT_SUPPORTED}
    three.broken = {"nvmlDeviceRegisterEvents": 999}
    events = driver(Binding(one, two, three)).events(("GPU-0", "GPU-1", "GPU-2"))
    assert (set(events.watched), events.unwatched) == (set(), {"GPU-2": "error 999"})


def test_a_failed_wait_raises_and_can_be_closed() -> None:
    binding = Binding(*cards(1))
    events = driver(binding).events(("GPU-0",))
    binding.happening.put(LOST)
    with pytest.raises(DriverGone, match="GPU is lost"):
        events.wait(1)
    binding.gone = 1
    events.close()
    assert binding.nvmlLib is None


async def test_an_xid_and_a_lost_gpu_reach_the_list() -> None:
    binding = Binding(*cards(4))
    async with listing(resource(GpuMonitor(driver(binding), INTERVALS))) as lists:
        await lists.first()
        binding.happening.put((binding.cards[2], 0x8, 48))
        await lists.reason("GPU-2", "Xid 48")
        binding.cards[3].broken = {"*": LOST}
        binding.happening.put(LOST)
        await lists.reason("GPU-3", "GPU is lost")
        assert [device.healthy for device in lists.devices.values()] == [True, True, False, False]
        binding.cards[3].broken = {}
        await lists.reason("GPU-3", "")
        binding.happening.put((binding.cards[0], 0x8, 79))
        await lists.reason("GPU-0", "Xid 79")


async def test_an_xid_of_a_gpu_without_a_uuid_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    binding = Binding(*cards(2))
    with recorded_log("plugwright.plugins.nvidia.monitor", caplog) as log:
        async with listing(resource(GpuMonitor(driver(binding), INTERVALS))) as lists:
            await lists.first()
            binding.cards[1].broken = {"*": LOST}
            binding.happening.put((binding.cards[1], 0x8, 79))
            await log.until("Xid")
            await lists.reason("GPU-1", "GPU is lost")


async def test_a_wait_that_always_fails_is_retried_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    binding = Binding(*cards(1))
    for _ in range(100):
        binding.happening.put(999)
    monitor = GpuMonitor(driver(binding), PollIntervals(retry=3600, rescan=3600))
    with recorded_log("plugwright.plugins.nvidia.event_watch", caplog) as log:
        async with listing(resource(monitor)) as lists:
            await lists.first()
            await log.until("no longer receiving events of GPUs")
            binding.cards.append(Card("GPU-9", bus=9))
            monitor.read_now()
            await lists.until(lambda devices: len(devices) == 2)
    assert binding.happening.qsize() == 99


async def test_waits_that_fail_for_ever_make_gpus_unhealthy() -> None:
    binding = Binding(*cards(1))
    for _ in range(10_000):
        binding.happening.put(999)
    async with listing(resource(GpuMonitor(driver(binding), INTERVALS))) as lists:
        device = await lists.reason("GPU-0", "its events cannot be registered: waiting for events failed: error 999")
        assert device.code == "events"


def test_a_gpu_that_does_not_answer_never_has_the_uuid_of_one_that_answers() -> None:
    binding = Binding(*cards(3))
    nvml = driver(binding)
    nvml.read()
    binding.cards = [binding.cards[1], binding.cards[2], Card("GPU-0", broken={"*": LOST})]
    assert [(gpu.uuid, gpu.fault) for gpu in nvml.read().gpus] == [("GPU-1", ""), ("GPU-2", "")]
    nvml.close()  # and the next driver counts as it likes
    binding.cards = [Card("GPU-9", broken={"*": LOST}), *cards(1)]
    assert [gpu.uuid for gpu in nvml.read().gpus] == ["GPU-0"]


def test_contained_errors_of_memory_do_not_count_where_rows_are_remapped() -> None:
    old = {"nvmlDeviceGetFieldValues": NOT_SUPPORTED}  # a driver before 570
    contained, sram, pages = Card("a", ecc=1), Card("b", ecc=2, ecc_sram=1), Card("c", ecc=1)
    pages.broken["nvmlDeviceGetRemappedRows"] = NOT_SUPPORTED  # a GPU before Ampere
    for card in (contained, sram, pages):
        card.broken |= old
    nvml = driver(Binding(contained, sram, pages))
    reasons = [assess(NvidiaHealth(), nvml.health(uuid), (), 0) for uuid in "abc"]
    assert [(assessment.reason, assessment.code) for assessment in reasons] == [
        ("", ""),
        ("1 uncorrected ECC errors", "ecc"),
        ("1 uncorrected ECC errors", "ecc"),
    ]


@pytest.mark.parametrize(
    ("fabric", "reason"),
    [
        (None, ""),
        ((0, 0, 0), ""),
        ((1, 0, 0), "has not been started: is the fabric manager running?"),
        ((2, 0, 0), "is not ready yet: is the fabric manager running?"),
        ((3, 0, 0b10101010), ""),
        ((3, 0, 0b01), ""),  # degraded bandwidth: programs run
        ((3, 999, 0), "is not usable: error 999"),
        ((3, 0, 0b10_01_10_10), "is not usable: a route is unhealthy"),
    ],
)
def test_a_gpu_without_its_fabric_is_unhealthy(fabric: tuple[int, int, int] | None, reason: str) -> None:
    one, two = cards(2)
    one.fabric = fabric
    nvml = driver(Binding(one, two))
    nvml.read()
    assessment = assess(NvidiaHealth(), nvml.health("GPU-0"), (), 0)
    assert assessment.reason == (f"its NVLink fabric {reason}" if reason else "")
    assert assessment.code == ("fabric" if reason else "")
    assert not assess(NvidiaHealth(fabric=False), nvml.health("GPU-0"), (), 0).reason
    one.mig = []
    assert not nvml.health("GPU-0").fabric
    alone = driver(Binding(Card("GPU-0", fabric=fabric)))
    alone.read()
    assert not alone.health("GPU-0").fabric


def test_the_processes_of_a_gpu_are_read_each_once() -> None:
    [card] = cards(1)
    card.computing, card.drawing = [(30, None), (10, 2 * GIB)], [(10, 2 * GIB), (20, GIB)]
    binding = Binding(card)
    processes = (GpuProcess(10, 2 * GIB), GpuProcess(20, GIB), GpuProcess(30, None))
    assert driver(binding).use(card.uuid) == GpuUse(3 * GIB, processes)
    assert binding.opened == 0


@pytest.mark.parametrize("function", ["*", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"])
def test_the_use_of_a_gpu_that_does_not_tell_is_not_known(function: str) -> None:
    [card] = cards(1)
    card.broken[function] = NOT_SUPPORTED
    binding = Binding(card)
    assert driver(binding).use(card.uuid) is None
    assert driver(binding).use("GPU-of-another-machine") is None
    assert binding.opened == 0


def test_the_use_of_a_gpu_without_a_driver_raises() -> None:
    binding = Binding(*cards(1))
    binding.gone = 9
    with pytest.raises(DriverGone):
        driver(binding).use(binding.cards[0].uuid)


def test_a_load_of_the_driver_is_known_by_boot_and_module(tmp_path: Path) -> None:
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("one\n")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    nvml = driver(Binding(), tmp_path / "sys", tmp_path / "proc")
    load = nvml.load()
    assert load == nvml.load() != DriverLoad("one", "")
    assert load.may_be(DriverLoad("one", ""))
    (tmp_path / "sys/module/nvidia").rename(tmp_path / "sys/module/unloaded")
    (tmp_path / "sys/module/nvidia").mkdir()
    assert not load.may_be(nvml.load())
    assert not load.may_be(DriverLoad("two", load.driver))
