"""The metrics that name devices: facts, health, holders, cordons, failures, and errors that hardware reported."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.observed_kubelet import ObservedKubelet
from tests.plugins.nvidia.harness import machine, resource

from plugwright import Device, Plugin, Settings, serving
from plugwright.sdk import prometheus
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.device_metrics import MOST_DEVICES
from plugwright.system.latest import Latest
from plugwright.testing import pod_requesting, running

TAPE = "example.com/tape"
GPU = "nvidia.com/gpu"


class Drives(Plugin):
    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.listed = Latest(list(devices))

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for devices in self.listed.changes():
            yield devices


def rows(daemon: Daemon, name: str, *labels: str) -> list[tuple[object, ...]]:
    """The values of these labels and the value, of each sample of a metric."""
    _, page = prometheus.page(daemon)()
    families = text_string_to_metric_families(page.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == f"plugwright_{name}"]
    return [(*(sample.labels[label] for label in labels), sample.value) for sample in samples]


async def test_a_failing_device_has_its_code_and_every_failure_is_counted(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    st0 = Device("st0", numa=[1], attributes={"model": "LTO-9", "pci": "0000:17:00.0", "uuid": "T-1"})
    plugin = Drives(st0, Device("st1"))
    async with serving(plugin, settings=settings) as daemon:
        await kubelet.endpoint(TAPE, 2)
        names = "device", "UUID", "model", "pci_bus_id", "numa", "serve"
        assert rows(daemon, "device_info", *names) == [
            ("st0", "T-1", "LTO-9", "0000:17:00.0", "1", "device-plugin", 1),
            ("st1", "", "", "", "", "device-plugin", 1),
        ]
        healthy = "device_healthy", "device", "UUID", "code"
        assert rows(daemon, *healthy) == [("st0", "T-1", "", 1), ("st1", "", "", 1)]
        for device in (st0.unhealthy("hot", "fan"), st0, st0.unhealthy("hot", "fan")):
            plugin.listed.publish([device, Device("st1")])
            await kubelet.health(TAPE, "st0", device.health)
        assert rows(daemon, *healthy) == [("st0", "T-1", "fan", 0), ("st1", "", "", 1)]
        assert rows(daemon, "device_failures_total", "device", "UUID", "code") == [("st0", "T-1", "fan", 2)]


async def test_a_cordon_is_shown_and_is_no_failure(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Drives(Device("st0"), Device("st1")), settings=settings) as daemon:
        await kubelet.endpoint(TAPE, 2)
        daemon.resource(TAPE).inventory.cordon({"st1": "tape is stuck"})
        await kubelet.health(TAPE, "st1", "Unhealthy")
        assert rows(daemon, "device_cordoned", "resource", "device") == [(TAPE, "st1", 1)]
        assert rows(daemon, "device_healthy", "device", "code") == [("st0", "", 1), ("st1", "cordoned", 0)]
        assert rows(daemon, "device_failures_total") == []


async def test_the_holder_is_named_by_the_scrape_after_the_one_that_asks(tmp_path: Path) -> None:
    async with running(Drives(Device("st0"), Device("st1")), tmp_path) as kubelet:
        await kubelet.capacity(TAPE)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        labels = "device", "api", "namespace", "pod", "container", "dra_claim_name"
        async with asyncio.timeout(60):
            while not (found := rows(kubelet.daemon, "device_holder", *labels)) or not found[0][3]:
                await asyncio.sleep(0.01)  # a scrape asks, a later one has the answer
        [(device, api, *names, claim, one)] = found
        assert (device in ("st0", "st1"), api, claim, one) == (True, "device-plugin", "", 1)
        assert names == [pod.spec.namespace, pod.spec.name, "main"]


async def test_every_xid_is_counted_also_an_ignored_one(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = resource(machine("t4"))
    async with serving(plugin, settings=settings) as daemon:
        runtime = daemon.resource(GPU)
        await kubelet.endpoint(GPU)
        async with asyncio.timeout(60):
            snapshot = await runtime.inventory.latest.until(lambda latest: latest is not None)
            assert snapshot is not None
            uuid = str(next(iter(snapshot.devices.values())).attributes["gpu"])
            await plugin.monitor.views.until(lambda view: uuid in view.watched)
            for xid in ("94", "94", "79"):
                await plugin.command("xid", {"id": uuid, "xid": xid})
            await runtime.inventory.latest.until(
                lambda latest: latest is not None and not all(device.healthy for device in latest.devices.values())
            )
            while (found := rows(daemon, "device_events_total", "UUID", "code"))[:1] != [(uuid, "xid-79", 1)]:
                await asyncio.sleep(0.01)
        assert found == [(uuid, "xid-79", 1), (uuid, "xid-94", 2)]
        assert rows(daemon, "device_failures_total", "UUID", "code") == [(uuid, "xid-79", 1)]


async def test_the_number_of_series_is_bounded_and_the_rest_is_counted(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugin = Drives(*(Device(f"st{number}") for number in range(MOST_DEVICES + 7)))
    async with serving(plugin, settings=settings) as daemon:
        await kubelet.endpoint(TAPE, MOST_DEVICES + 7)
        assert len(rows(daemon, "device_info")) == len(rows(daemon, "device_healthy")) == MOST_DEVICES
        assert rows(daemon, "devices_without_series", "resource") == [(TAPE, 7)]


async def test_every_sample_has_the_node(settings: Settings, kubelet: ObservedKubelet) -> None:
    async with serving(Drives(Device("st0")), settings=replace(settings, node_name="worker-17")) as daemon:
        await kubelet.endpoint(TAPE, 1)
        _, page = prometheus.page(daemon)()
        samples = [s for family in text_string_to_metric_families(page.decode()) for s in family.samples]
        assert {sample.labels.get("node") for sample in samples} == {"worker-17"}
        assert "process_resident_memory_bytes" in {sample.name for sample in samples}
