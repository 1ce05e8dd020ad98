"""`running`: a plugin beside an emulated kubelet, as in an author's test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sdk.actors import TAPE
from tests.sdk.actors import ListingPlugin as Shelf

from plugwright import Allocation, Device, Plugin, Registration, Settings
from plugwright.errors import ConfigError, InvalidValue, KubeletFindings, PluginError
from plugwright.testing import KubeletSettings, PeerGone, PeerRefused, pod_requesting, running

PATIENT = KubeletSettings(timeout=60)
IMPATIENT = KubeletSettings(timeout=3)
ALLOWING = KubeletSettings(allowed=["3.54"])  # both shelves set one variable


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
    async with running([Shelf("example.com/a"), Shelf("example.com/b", "only")], tmp_path, ALLOWING) as kubelet:
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
    assert f"discover() of {TAPE} yielded no list within 3 s" in str(caught.value)


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


async def test_a_finding_fails_a_test_that_does_not_allow_it(tmp_path: Path) -> None:
    with pytest.raises(KubeletFindings, match=r"no plugin ever listed example.com/gone"):
        async with running(Shelf(), tmp_path) as kubelet:
            await kubelet.admit(pod_requesting({"example.com/gone": 1}))


async def test_an_allowed_finding_does_not(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path, KubeletSettings(allowed=["3.63"], strict=True)) as kubelet:
        await kubelet.admit(pod_requesting({"example.com/gone": 1}))
        assert [finding.fact for finding in kubelet.findings] == ["3.63"]


async def test_a_test_that_fails_for_another_reason_has_the_finding_as_a_note(tmp_path: Path) -> None:
    async def failing() -> None:
        async with running(Shelf(), tmp_path) as kubelet:
            await kubelet.admit(pod_requesting({"example.com/gone": 1}))
            raise AssertionError("mine")

    with pytest.raises(AssertionError, match="mine") as caught:
        await failing()
    [note] = caught.value.__notes__
    assert note.startswith("finding: ")
    assert "no plugin ever listed example.com/gone" in note


def test_what_is_allowed_is_a_list_of_facts() -> None:
    with pytest.raises(ConfigError, match=r"allowed must be a list of facts such as '3.63', got '3.63'"):
        KubeletSettings(allowed="3.63")


async def test_a_wait_that_ends_says_what_was_expected_and_what_is(tmp_path: Path) -> None:
    class Failing(Shelf):
        async def discover(self) -> AsyncIterator[list[Device]]:
            yield [Device("st0").unhealthy("dust"), Device("st1"), Device("st2")]

    async with running(Failing(), tmp_path, IMPATIENT) as kubelet:
        waits = (
            kubelet.allocatable(TAPE, count=3),
            kubelet.capacity("example.com/x"),
            kubelet.reason(TAPE, "st1"),
            kubelet.reason(TAPE, "st9"),
        )
        ends = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(end) for end in ends} == {PeerGone}
    assert [str(end) for end in ends] == [
        f"{TAPE}: 3 allocatable expected, 2 of 3 (st0 Unhealthy) after 3 s",
        f"example.com/x: a list expected, no plugin has listed it (listed: {TAPE}) after 3 s",
        f"{TAPE}: st1 Unhealthy expected, Healthy after 3 s",
        f"{TAPE}: st9 Unhealthy expected, not listed after 3 s",
    ]


async def test_reasons_and_the_status_of_the_daemon_are_there(tmp_path: Path) -> None:
    class Failing(Shelf):
        async def discover(self) -> AsyncIterator[list[Device]]:
            async for ids in self.ids.changes():
                yield [Device("st0"), *(Device(device_id).unhealthy("dust") for device_id in ids[2:])]

    shelf = Failing()
    async with running(shelf, tmp_path) as kubelet:
        shelf.ids.publish(("st0", "st1", "st2"))
        assert await kubelet.reason(TAPE, "st2") == "dust"
        assert await kubelet.reason(TAPE, "st0", "Healthy") == ""
        [resource] = kubelet.status()["resources"]
        assert (resource["state"], resource["name"]) == ("registered", TAPE)


async def test_a_direct_call_that_is_refused_is_an_error_of_the_test_kit(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        with pytest.raises(PeerRefused, match="has no device 'st9'"):
            await kubelet.allocate(TAPE, ["st9"])


async def test_arguments_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    wrong: list[tuple[object, object, type[Exception], str]] = [
        (
            Shelf,
            tmp_path,
            InvalidValue,
            r"plugin must be an instance, got the class ListingPlugin: write ListingPlugin\(\)",
        ),
        (tmp_path, Shelf(), TypeError, r"running\(plugin, tmp_path\), got running\(PosixPath, ListingPlugin\)"),
        (Shelf(), None, TypeError, r"running\(plugin, tmp_path\), got running\(ListingPlugin, NoneType\)"),
    ]
    for plugin, directory, kind, line in wrong:
        with pytest.raises(kind, match=line):
            async with running(plugin, directory):  # type: ignore[arg-type]
                pass


async def test_a_path_that_the_host_does_not_have_is_a_finding(tmp_path: Path) -> None:
    class Handing(Shelf):
        async def allocate(self, devices: object) -> Allocation:
            return Allocation(nodes=["/dev/st0", "/dev/st1"], mounts=["/etc/tapes"])

    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "st0").touch()
    with pytest.raises(KubeletFindings) as caught:
        async with running(Handing(), tmp_path, KubeletSettings(host_root=tmp_path)) as kubelet:
            await kubelet.admit(pod_requesting({TAPE: 1}))
    assert len(caught.value.findings) == 2
    assert f"device node {tmp_path}/dev/st1 does not exist; a real kubelet passes it on" in caught.value.findings[0]
    assert f"mount {tmp_path}/etc/tapes does not exist" in caught.value.findings[1]
