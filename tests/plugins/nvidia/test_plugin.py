"""A resource of NVIDIA GPUs: what it lists while things happen to the machine, on a machine that does not exist."""

import asyncio
from pathlib import Path

import pytest
from tests.plugins.nvidia.looking import Clock, Lists, listing, machine, resource
from tests.sdk.cdi.resolution import resolve

from plugwright import Device, PluginError, Settings, serving
from plugwright.model import PreferenceRequest
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.config import Options, Places, Strategy
from plugwright.plugins.nvidia.driver import Reading
from plugwright.plugins.nvidia.health import Action, Rules
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.selection import Mig, Pattern, Selection
from plugwright.plugins.nvidia.sharing import Share, TimeSlicing
from plugwright.plugins.nvidia.simulation import Simulation
from tiny_kubelet import TinyKubelet

H100 = simulated_machines.load("hgx-h100").gpus
CUT = Options(selection=Selection(mig=Mig.SINGLE))


async def happens(plugin: Nvidia, lists: Lists, device_id: str, xid: int) -> None:
    """An Xid, once somebody listens: what happens before that is heard by nobody."""
    gpu = lists.devices[device_id].attributes["gpu"]
    await lists.until(lambda _: plugin.watch.view is not None and gpu in plugin.watch.view.watched)
    await plugin.command("xid", {"id": device_id, "xid": str(xid)})


async def test_a_gpu_says_what_it_is() -> None:
    async with listing(resource(machine("hgx-h200"))) as lists:
        devices = await lists.first()
    assert len(devices) == 8
    first = next(iter(devices.values()))
    assert (first.healthy, first.numa, first.attributes["model"]) == (True, (0,), "NVIDIA H200")
    assert (first.attributes["memory"], first.attributes["pci"]) == (143771 * 2**20, "0000:18:00.0")


async def test_the_machine_is_read_once_for_all_resources() -> None:
    watch = machine("hgx-h100")
    low = Options(selection=Selection(include=Pattern(index=tuple("0123"))))
    high = Options(selection=Selection(exclude=Pattern(index=tuple("0123"))))
    async with listing(resource(watch, low)) as some, listing(resource(watch, high, "nvidia.com/others")) as others:
        assert not set(await some.first()) & set(await others.first())
        assert len(some.devices) == len(others.devices) == 4
        assert isinstance(watch.driver, Simulation)
        assert watch.driver.reads == 1


@pytest.mark.parametrize("kind", ["whole", "parts", "shares"])
async def test_all_parts_of_a_gpu_fail_and_recover_with_it(kind: str) -> None:
    watch = machine("hgx-h100-mig" if kind == "parts" else "hgx-h100")
    options = {"whole": Options(), "parts": CUT, "shares": Options(share=Share(replicas=3))}[kind]
    plugin = resource(watch, options)
    async with listing(plugin) as lists:
        devices = await lists.first()
        gpu = next(iter(devices.values())).attributes["gpu"]
        family = {each for each, device in devices.items() if device.attributes["gpu"] == gpu}
        assert len(family) == {"whole": 1, "parts": 7, "shares": 3}[kind]
        await happens(plugin, lists, min(family), 79)
        await plugin.command("lose", {"id": min(family)})
        await lists.reason(min(family), "GPU is lost")
        assert {each for each, device in lists.devices.items() if not device.healthy} == family
        await plugin.command("reset", {"id": min(family)})
        await lists.until(lambda found: all(device.healthy for device in found.values()))


async def test_a_double_bit_error_waits_for_a_reset_and_an_operator_can_overrule() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await happens(plugin, lists, first, 48)
        device = await lists.reason(first, "waiting for a reset")
        assert device.reason == "Xid 48 (double bit ECC error), waiting for a reset"
        assert "forgotten" in await plugin.command("recover", {"id": first})
        await lists.reason(first, "")


async def test_a_quiet_time_ends_by_itself() -> None:
    clock = Clock()
    plugin = resource(machine("t4", clock), Options(rules=Rules(quiet=0.05)))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await happens(plugin, lists, first, 999)
        await lists.reason(first, "waiting for quiet")
        clock.now += 1
        await lists.reason(first, "")


async def test_rules_are_the_resources_own() -> None:
    watch = machine("t4")
    strict = Options(selection=Selection(include=Pattern(index=("0",))), rules=Rules(xids={13: Action.FAIL}))
    lenient = Options(selection=Selection(include=Pattern(index=("1",))))
    picky, easy = resource(watch, strict), resource(watch, lenient, "nvidia.com/more")
    async with listing(picky) as one, listing(easy) as other:
        [first], [second] = await one.first(), await other.first()
        await happens(easy, other, second, 13)
        await happens(picky, one, first, 13)
        await one.reason(first, "waiting for an operator")
        assert other.devices[second].healthy


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("ecc", {"count": "2"}, "the driver asks for: reset"),
        ("remap", {"state": "failed"}, "could not be replaced"),
        ("lose", {}, "GPU is lost"),
    ],
)
async def test_what_a_gpu_says_of_itself_counts(command: str, arguments: dict[str, str], reason: str) -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *others = await lists.first()
        await plugin.command(command, {"id": first, **arguments})
        await lists.reason(first, reason)
        assert all(lists.devices[other].healthy for other in others)
        await plugin.command("reset", {"id": first})
        await lists.reason(first, "")


async def test_a_gpu_whose_events_cannot_be_heard_is_unhealthy_until_they_can() -> None:
    watch = machine("t4")
    assert isinstance(watch.driver, Simulation)
    watch.driver.act("deafen", {"id": "2"})
    plugin = resource(watch)
    async with listing(plugin) as lists:
        devices = await lists.first()
        deaf = list(devices)[2]
        await lists.reason(deaf, "its events cannot be heard")
        assert sum(device.healthy for device in lists.devices.values()) == 3
        await plugin.command("reset", {"id": "2"})
        await lists.reason(deaf, "")


async def test_events_that_cannot_be_heard_may_be_of_no_concern() -> None:
    watch = machine("t4")
    assert isinstance(watch.driver, Simulation)
    watch.driver.act("deafen", {"id": "2"})
    async with listing(resource(watch, Options(rules=Rules(unwatched=False)))) as lists:
        await lists.first()
        await lists.until(lambda _: bool(watch.view and watch.view.unwatched))
        assert all(device.healthy for device in lists.devices.values())


async def test_a_driver_that_is_not_there_yet_is_waited_for(settings: Settings, kubelet: TinyKubelet) -> None:
    watch = GpuMonitor(Simulation("t4"), PollIntervals(retry=0.02))
    assert isinstance(watch.driver, Simulation)
    watch.driver.act("driver", {"state": "gone"})
    async with serving(resource(watch), settings=settings) as daemon:
        runtime = daemon.resource("nvidia.com/gpu")
        await runtime.discovery.failing.until(bool)
        assert "the driver is not loaded" in runtime.discovery.failing.value
        watch.driver.act("driver", {"state": "back"})
        gpu = await kubelet.endpoint("nvidia.com/gpu", 4)
        assert len(gpu.devices) == 4


async def test_a_driver_that_is_loaded_anew_takes_its_gpus_out_and_brings_them_back() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await happens(plugin, lists, first, 79)
        await lists.reason(first, "Xid 79")
        await plugin.command("driver", {"state": "gone"})
        await lists.until(lambda found: all("not loaded" in device.reason for device in found.values()))
        await plugin.command("driver", {"state": "back"})
        await lists.until(lambda found: all(device.healthy for device in found.values()))
        await happens(plugin, lists, first, 48)
        await lists.reason(first, "Xid 48")


async def test_gpus_come_and_go() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, *others = await lists.first()
        await plugin.command("remove", {"id": first})
        await lists.until(lambda found: list(found) == others)
        await plugin.command("add", {"id": first})
        await lists.until(lambda found: set(found) == {first, *others})
        await happens(plugin, lists, first, 79)
        await lists.reason(first, "Xid 79")


async def test_a_new_layout_of_a_gpu_is_noticed() -> None:
    plugin = resource(machine("h200"), CUT)
    async with listing(plugin) as lists:
        [whole] = await lists.first()
        await plugin.command("mig", {"id": whole, "profiles": "3g.71gb,3g.71gb"})
        await lists.until(lambda found: len(found) == 2)
        await plugin.command("mig", {"id": whole, "profiles": "off"})
        await lists.until(lambda found: list(found) == [whole])


async def test_a_device_that_two_resources_ask_for_is_given_to_none() -> None:
    watch = machine("t4")
    some = Options(selection=Selection(include=Pattern(index=("0", "1"))))
    async with listing(resource(watch)) as everything, listing(resource(watch, some, "nvidia.com/some")) as two:
        first, second, *rest = await everything.first()
        await two.first()
        reason = "asked for by nvidia.com/gpu and nvidia.com/some: a device is in one resource"
        assert (await everything.reason(second, "asked for by")).reason == reason
        assert (await two.reason(first, "asked for by")).reason == reason
        assert all(everything.devices[each].healthy for each in rest)


async def test_a_whole_gpu_and_its_parts_are_given_to_none() -> None:
    watch = machine("hgx-h100-mig")
    async with listing(resource(watch)) as whole, listing(resource(watch, CUT, "nvidia.com/parts")) as parts:
        first, part = next(iter(await whole.first())), next(iter(await parts.first()))
        for lists, device in ((whole, first), (parts, part)):
            reason = (await lists.reason(device, "asked for by")).reason
            assert reason == "asked for by nvidia.com/gpu and nvidia.com/parts: a device is in one resource"


async def test_a_plugin_that_takes_over_answers_before_its_first_list() -> None:
    watch = machine("t4")
    async with listing(resource(watch)) as lists:
        first, *_ = await lists.first()
        answer = await resource(watch).allocate([lists.devices[first]])
        assert answer.nodes
        with pytest.raises(PluginError, match="no longer has GPU-9"):
            await resource(watch).allocate([Device("GPU-9")])


async def test_shares_that_fit_into_no_gpu_are_said() -> None:
    async with listing(resource(machine("t4"), Options(share=Share(memory=40 * 2**30)))) as lists:
        with pytest.raises(PluginError, match="no device is large enough"):
            await lists.first()


async def test_a_driver_that_hangs_is_said() -> None:
    stuck = asyncio.Event()

    class Hanging(Simulation):
        def read(self) -> Reading:
            if self.reads:
                asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result()
            return super().read()

    loop = asyncio.get_running_loop()
    watch = GpuMonitor(Hanging("t4"), PollIntervals(retry=0.02, read_timeout=0.05))
    plugin = resource(watch)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await happens(plugin, lists, first, 48)
        await lists.reason(first, "has not answered")
        stuck.set()
        await lists.reason(first, "waiting for a reset")  # which a driver that hung was none


async def test_an_isolation_that_breaks_is_said() -> None:
    class Broken(TimeSlicing):
        async def follow(self, changed: object) -> None:
            raise PluginError("the limiter has gone")

    plugin = Nvidia("nvidia.com/gpu", Options(), machine("t4"), Broken("nvidia.com/gpu", None))
    async with listing(plugin) as lists:
        with pytest.raises(PluginError, match="the limiter has gone"):
            await lists.until(lambda _: False)


async def test_a_command_that_cannot_be_done_is_refused() -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        await lists.first()
        for name, arguments in [
            ("dance", {"id": "0"}),
            ("xid", {"id": "9", "xid": "79"}),
            ("xid", {"id": "0", "xid": "many"}),
            ("recover", {"id": "9"}),
            ("driver", {"state": "drunk"}),
        ]:
            with pytest.raises(PluginError):
                await plugin.command(name, arguments)


@pytest.mark.parametrize("ours", [True, False])
async def test_cdi_specs_are_there_before_the_first_list_unless_they_are_anothers(tmp_path: Path, ours: bool) -> None:
    options = Options(strategies=(Strategy.CDI_CRI,), places=Places(cdi=tmp_path), write_specs=ours)
    plugin = resource(machine("t4"), options)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        [name] = (await plugin.allocate([lists.devices[first]])).cdi
        assert name == f"k8s.device-plugin.nvidia.com/gpu={first}"
        assert (name in resolve([tmp_path])) is ours
    assert bool(list(tmp_path.iterdir())) is ours  # they stay: the kubelet uses its stored answers again


async def test_cdi_specs_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = Options(strategies=(Strategy.CDI_CRI,), places=Places(cdi=tmp_path / "file"))
    async with listing(resource(machine("t4"), options)) as lists:
        with pytest.raises(PluginError, match="CDI specs cannot be written"):
            await lists.first()


async def test_linked_gpus_are_preferred(kubelet: TinyKubelet, settings: Settings) -> None:
    cube = simulated_machines.load("dgx-1").gpus
    async with serving(resource(machine("dgx-1")), settings=settings):
        gpu = await kubelet.endpoint("nvidia.com/gpu", 8)
        [chosen] = await gpu.client.prefer(PreferenceRequest(tuple(gpu.devices), (cube[0].uuid,), 2))
    assert chosen[0] == cube[0].uuid
    assert chosen[1] in {cube[3].uuid, cube[4].uuid}


async def test_the_kubelet_gets_it_all(kubelet: TinyKubelet, settings: Settings) -> None:
    watch = machine("hgx-h100")
    async with serving(resource(watch, Options(share=Share(replicas=2, most=1))), settings=settings):
        gpu = await kubelet.endpoint("nvidia.com/gpu", 16)
        first = next(each for each in gpu.devices if each.startswith(H100[3].uuid))
        assert first == f"{H100[3].uuid}::0"
        [answer] = await gpu.client.allocate([first])
        assert [node.container_path for node in answer.nodes][-1] == "/dev/nvidia3"
        assert answer.env["PLUGWRIGHT_GPU_MEMORY"] == str(81559 * 2**20 // 2)
