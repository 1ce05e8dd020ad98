"""`running`: a plugin beside an emulated kubelet, as in an author's test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sdk.actors import TAPE
from tests.sdk.actors import ListingPlugin as Shelf

from plugwright import Device, Plugin, Registration, Settings
from plugwright.errors import ConfigError, InvalidValue, KubeletFindings, PluginError
from plugwright.testing import KubeletSettings, pod_requesting, running

PATIENT = KubeletSettings(timeout=60)
IMPATIENT = KubeletSettings(timeout=0.5)


class Broken(Plugin):
    """Its discovery fails `failures` times."""

    resource = TAPE

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def discover(self) -> AsyncIterator[list[Device]]:
        if self.failures:
            self.failures -= 1
            raise OSError("the bus is down")
        yield [Device("st0")]


class Silent(Plugin):
    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        await asyncio.Event().wait()
        yield []


async def test_kubelet_has_the_devices_at_once(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        assert kubelet.node()[TAPE].allocatable == 2


async def test_several_plugins_are_all_listed(tmp_path: Path) -> None:
    async with running([Shelf("example.com/a"), Shelf("example.com/b", "only")], tmp_path) as kubelet:
        node = kubelet.node()
        pod = await kubelet.admit(pod_requesting({"example.com/a": 1, "example.com/b": 1}))
        assert {name: count.capacity for name, count in node.items()} == {"example.com/a": 2, "example.com/b": 1}
        assert {device.resource for device in kubelet.device_health(pod)["main"]} == {"example.com/a", "example.com/b"}


async def test_empty_list_is_a_list(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.ids.publish(())
    async with running(shelf, tmp_path) as kubelet:
        assert await kubelet.capacity(TAPE) == 0


async def test_kubelet_has_the_given_settings(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path, KubeletSettings(version="1.30", numa=2)) as kubelet:
        assert (kubelet.settings.profile.name, kubelet.settings.machine) == ("1.30", (0, 1))


async def test_plugin_may_register_through_plugins_registry(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path, served=Settings(registration=Registration.WATCHER)) as kubelet:
        assert "GetInfo" in [call.method for call in kubelet.calls]


async def test_environment_does_not_change_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGWRIGHT_KUBELET_DIR", "/nowhere")
    monkeypatch.setenv("PLUGWRIGHT_DEVICE_PLUGINS_DIR", "/nowhere")
    async with running(Shelf(), tmp_path) as kubelet:
        assert await kubelet.capacity(TAPE) == 2


async def test_files_stay_in_the_directory_and_sockets_do_not(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path):
        pass
    assert (tmp_path / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint").is_file()
    assert not [path for path in tmp_path.rglob("*") if path.is_socket()]


async def test_second_kubelet_in_the_directory_reads_the_checkpoint(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path):
        pass
    async with running(Shelf(), tmp_path) as kubelet:  # the checkpoint knows the resource: not to be taken for a list
        assert kubelet.node()[TAPE].allocatable == 2


async def test_second_kubelet_at_the_same_time_is_refused(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path):
        with pytest.raises(ConfigError, match="already serving"):
            async with running(Shelf(), tmp_path):
                pass


async def test_failing_discovery_is_a_plugin_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        async with running(Broken(failures=10**6), tmp_path, PATIENT):
            pass
    assert str(caught.value).startswith(f"discover() of {TAPE} failed: OSError: the bus is down at tests/testing/")


async def test_discovery_that_fails_once_is_retried(tmp_path: Path) -> None:
    async with running(Broken(failures=1), tmp_path, PATIENT) as kubelet:
        assert await kubelet.capacity(TAPE) == 1


async def test_discovery_without_a_list_times_out(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        async with running([Shelf("example.com/a"), Silent()], tmp_path, IMPATIENT):
            pass
    assert str(caught.value) == f"discover() of {TAPE} yielded no list within 0.5 s"


async def test_errors_of_the_sdk_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=f"two plugins serve {TAPE}"):
        async with running([Shelf(), Shelf()], tmp_path):
            pass


async def test_errors_of_the_test_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="mine"):
        async with running(Shelf(), tmp_path):
            raise AssertionError("mine")


async def test_findings_fail_a_strict_test(tmp_path: Path) -> None:
    with pytest.raises(KubeletFindings, match=r"no plugin ever listed example.com/gone"):
        async with running(Shelf(), tmp_path, KubeletSettings(strict=True)) as kubelet:
            await kubelet.admit(pod_requesting({"example.com/gone": 1}))
