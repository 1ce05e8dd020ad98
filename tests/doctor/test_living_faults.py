"""Faults in the life of kubelets, daemons and plugins are found by exactly one line each."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.cli.test_dra import write_kubeconfig
from tests.doctor.patient import Patient, check_only, findings, patient
from tests.sdk.test_rivals import rival

from plugwright import Allocation, Device, Plugin, Settings, serving
from plugwright.doctor.examined_node import DoctorTarget, ExaminedNode
from plugwright.doctor.host_checks import selinux, state_directory
from plugwright.doctor.kubelet_checks import kubelet_directory, lost_plugins
from plugwright.errors import KubeletError
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.plugin_calls import StallDetector
from plugwright.testing import pod_requesting


async def test_a_kubelet_that_has_ended_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        assert node.kubelet is not None
        await node.kubelet.stop()
        check_only(await node.examine(), "kubelet-socket", "no process listens", "systemctl start kubelet")
        await node.kubelet.start()


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_a_registration_socket_that_is_none_is_one_finding(root: Path, kind: str) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        kubelet = node.plugins / "kubelet.sock"
        kubelet.unlink()
        if kind == "file":
            kubelet.write_text("")
        seen = "does not exist" if kind == "missing" else "is not a socket"
        check_only(await node.examine(), "kubelet-socket", seen, "systemctl restart kubelet")


async def test_a_missing_directory_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.plugins.rename(node.plugins.with_name("elsewhere"))
        check_only(await node.examine(), "kubelet-directory", "does not exist", "--device-plugins-dir")
        node.plugins.with_name("elsewhere").rename(node.plugins)


def test_a_directory_that_was_replaced_under_its_mount_is_a_finding(tmp_path: Path) -> None:
    old = tmp_path / "device-plugins"
    old.mkdir()
    descriptor = os.open(old, os.O_RDONLY)
    try:
        old.rmdir()
        mounted = KubeletPaths(tmp_path, Path(f"/proc/self/fd/{descriptor}"))
        check = kubelet_directory(ExaminedNode(DoctorTarget(kubelet=mounted, in_pod=True)))
    finally:
        os.close(descriptor)
    assert (check.state, "was removed on the node" in check.found) == ("finding", True)


async def test_a_killed_daemon_is_one_finding_beside_its_socket(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        assert node.daemon is not None
        node.daemon.signal(signal.SIGKILL)
        await node.daemon.ends()
        found = {check.name: check for check in findings(await node.examine())}
        assert found.keys() == {"daemon", "plugin-sockets"}
        assert "no process listens" in found["daemon"].found
        assert "systemctl start plugwright" in found["daemon"].fix


async def test_a_daemon_that_hangs_is_one_finding_and_asked_once(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        assert node.daemon is not None
        node.daemon.signal(signal.SIGSTOP)
        report = await node.examine(kubelet=None, response_limit=0.5)
        node.daemon.signal(signal.SIGCONT)
    check_only(report, "daemon", "did not answer within 0.5 s", "restart it")


async def test_cordons_that_were_damaged_since_the_start_are_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.write("var/lib/plugwright/cordons.json", "{")
        report = await node.examine()
    check_only(report, "cordons", "cannot be read", "mv /var/lib/plugwright/cordons.json")


async def test_a_full_disk_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        report = await node.examine(least_free=2**62)
    check_only(report, "disk-space", "MiB left", "df -h /var/lib/plugwright")


async def test_a_state_directory_that_is_a_file_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.write("var/lib/other", "")
        report = await node.examine(node_dir=Path("/var/lib/other"))
    check_only(report, "state-directory", "is not a directory", "mv /var/lib/other")


async def test_a_read_only_state_directory_is_one_finding(root: Path) -> None:
    read_only = read_only_directory()
    if read_only is None:
        pytest.skip("no read-only file system here")
    async with patient(root) as node, node.served_here():
        await node.settled()
        (root / "var/lib/mounted").symlink_to(read_only)
        view = ExaminedNode(DoctorTarget(root=Path("/"), node_dir=root / "var/lib/mounted"))
        check = state_directory(view)
    assert (check.state, "is on a read-only file system" in check.found) == ("finding", True)
    assert "mount -o remount,rw" in check.fix


def read_only_directory() -> str | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        with suppress(OSError):
            if Path(place).is_dir() and os.statvfs(place).f_flag & os.ST_RDONLY:
                return place
    return None


def is_watched(report: Any) -> bool:
    """Whether the kubelet has the resource's stream open, which comes after the registration."""
    return bool(report["resources"] and report["resources"][0]["streams"])


def configured(**entry: Any) -> dict[str, object]:
    return {"resources": [{"name": "mock/gpu", "mock": {"count": 4}, **entry}]}


async def test_missing_expected_devices_are_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("etc/plugwright.yaml", configured(expect=8))
        async with node.served():
            await node.until(lambda report: report["resources"][0]["shortfall"] and report["holdings"]["complete"])
            await node.until(is_watched)
            check_only(await node.examine(), "expected-devices", "expected 8, found 4", "lspci")


async def test_a_refused_configuration_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        node.write("etc/new", configured(cuont=1)).rename(node.root / "etc/plugwright.yaml")
        await node.until(lambda report: report["daemon"]["config"]["refused"])
        check_only(await node.examine(), "configuration", "unknown key 'cuont'", "plugwright check")


async def test_a_last_good_configuration_in_force_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        async with node.served():
            await node.settled()
        node.write("etc/plugwright.yaml", configured(cuont=1))
        async with node.served():
            await node.until(lambda report: is_watched(report) and report["holdings"]["complete"])
            report = await node.examine()
    [finding] = findings(report)
    assert (finding.name, "plugwright check" in finding.fix) == ("configuration", True)
    assert "kept from before the last start" in finding.why or "last good version" in finding.found


async def test_unreadable_cordons_are_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("var/lib/plugwright/cordons.json", "{")
        async with node.served():
            await node.until(lambda report: report["cordonsUnreadable"] and report["holdings"]["complete"])
            await node.until(is_watched)
            check_only(await node.examine(), "cordons", "cannot be read", "mv /var/lib/plugwright/cordons.json")


async def test_a_resource_of_another_release_is_one_finding(root: Path) -> None:
    async with patient(root) as node, node.served("--release=fleet/first"):
        await node.settled()
        second = Patient(root, node.kubelet)
        own = ("--release=fleet/second", "--control-socket", root / "run/second.sock")
        async with second.served(*own, until="resource is owned by another daemon"):
            report = await node.examine(control_socket=Path("/run/second.sock"))
    check_only(report, "owner", "release fleet/first", "helm list -A")


async def test_a_failed_device_is_one_finding_and_a_cordoned_one_none(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        first, second, *_ = (device["id"] for device in node.ask(do="report")["resources"][0]["devices"])
        node.ask(do="cordon", resource="mock/gpu", id=first, reason="fan")
        await node.until(lambda report: any(device["cordoned"] for device in report["resources"][0]["devices"]))
        assert findings(await node.examine()) == []
        node.ask(do="plugin", resource="mock/gpu", name="fail", arguments={"id": second, "reason": "fell off"})
        await node.until(lambda report: report["resources"][0]["devices"][1]["health"] == "Unhealthy")
        check_only(await node.examine(), "devices", f"{second} Unhealthy, mock: fell off", "plugwright status")


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_device_that_vanishes_is_one_finding(root: Path, *, is_held: bool) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        assert node.kubelet is not None
        if is_held:
            pod = await node.kubelet.kubelet.admit(pod_requesting({"mock/gpu": 4}))
            (root / f"var/lib/kubelet/pods/{pod.uid}").mkdir()
        first = (await asyncio.to_thread(node.ask, do="report"))["resources"][0]["devices"][0]["id"]
        request = {"do": "plugin", "resource": "mock/gpu", "name": "remove", "arguments": {"id": first}}
        await asyncio.to_thread(node.ask, **request)
        await node.until(lambda report: report["resources"][0]["devices"][0]["code"] == "gone")
        await node.until(lambda report: bool(report["resources"][0]["devices"][0]["holders"]) is is_held)
        report = await node.examine()
    if is_held:
        check_only(report, "held-devices", first, f"delete the pods with uid {pod.uid}")
    else:
        check_only(report, "devices", f"{first} Unhealthy, gone: discovery", "plugwright status")


async def test_another_plugin_for_the_resource_is_one_finding(root: Path) -> None:
    stalls = StallDetector(1.0)
    async with patient(root) as node, node.served_here() as daemon:
        await node.settled()
        await daemon.rivals.compared.until(lambda: daemon.rivals.compared.count)
        assert node.kubelet is not None
        settings = Settings(kubelet_dir=root / "var/lib/kubelet")
        async with rival(node.kubelet.kubelet, settings, stalls, "GPU-1"):
            await node.until(lambda report: report["resources"][0]["rival"])
            report = await node.examine()
    stalls.close()
    check_only(report, "rivals", "GPU-1", "kubectl get ds -A")


async def test_a_driver_without_an_api_server_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("etc/plugwright.yaml", {**configured(serve="dra"), "host": {"cdi": str(root / "run/cdi")}})
        kubeconfig = write_kubeconfig(root / "etc", "https://127.0.0.1:1", root / "etc")
        flags = ("--node-name=worker-1", "--kubeconfig", kubeconfig)
        async with node.served(*flags, until="registered"):
            await node.until(lambda report: report["resources"][0]["driver"]["state"] == "unpublished")
            report = await node.examine()
    check_only(report, "dra-driver", "is unpublished", "plugwright dra slices")


class Earlier(Plugin):
    """The plugin of `mock/gpu` before ours, which has other ids for the same hardware."""

    resource = "mock/gpu"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("old-7")]


async def test_a_device_held_under_the_id_of_an_earlier_plugin_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        assert node.kubelet is not None
        async with serving(Earlier(), settings=Settings(kubelet_dir=root / "var/lib/kubelet")):
            await node.kubelet.endpoint("mock/gpu")
            pod = await node.kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1}))
        (root / f"var/lib/kubelet/pods/{pod.uid}").mkdir()
        async with node.served_here():
            await node.settled()
            check_only(await node.examine(), "held-devices", "old-7", f"delete the pods with uid {pod.uid}")


async def test_a_confined_daemon_is_a_finding_unless_the_policy_lets_it_register(root: Path) -> None:
    async with patient(root) as node:
        node.write("sys/fs/selinux/enforce", "1")
        node.write("proc/90/cmdline", "/usr/bin/python\0/usr/bin/plugwright\0run\0")
        node.write("proc/90/attr/current", "system_u:system_r:container_t:s0:c1,c2\0")
        target = DoctorTarget(root=root, kubelet=KubeletPaths())
        confined = await asyncio.to_thread(selinux, ExaminedNode(target))
        async with node.served():
            await node.settled()
            assert findings(await node.examine()) == []
    assert (confined.state, "runs as container_t" in confined.found) == ("finding", True)
    assert "security.seLinuxType=container_device_plugin_t" in confined.fix


def test_a_listening_process_whose_socket_was_removed_is_a_finding(root: Path) -> None:
    directory = root / "device-plugins"
    directory.mkdir()
    view = DoctorTarget(kubelet=KubeletPaths(root, directory))
    found = []
    with socket.socket(socket.AF_UNIX) as kubelet, socket.socket(socket.AF_UNIX) as plugin:
        for listening, name in ((kubelet, "kubelet.sock"), (plugin, "third.sock")):
            listening.bind(str(directory / name))
            listening.listen()
        for name in ("kubelet.sock", "third.sock"):  # the kubelet's own is the finding of another check
            (directory / name).unlink()
            found.append(lost_plugins(ExaminedNode(view)))
    assert [check.state for check in found] == ["ok", "finding"]
    assert found[1].found == f"process {os.getpid()} listens on {directory}/third.sock, which was removed"


class Broken(Plugin):
    """A plugin with one defect."""

    resource = "mock/gpu"

    def __init__(self, defect: str) -> None:
        super().__init__()
        self.defect, self.has_listed = defect, False

    async def discover(self) -> AsyncIterator[list[Device]]:
        if not self.has_listed:  # each further list would end the failure for a moment
            self.has_listed = True
            yield [Device("card-0"), Device("card-1")]
        if self.defect == "lists a device twice":
            yield [Device("card-0"), Device("card-0")]
        if self.defect == "stops discovering":
            raise OSError("bus reset")
        await asyncio.Event().wait()

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        if self.defect == "refuses":
            raise OSError("firmware rejected")
        return Allocation()


def own_settings(root: Path) -> Settings:
    """For a daemon of this process, as `served_here` has it."""
    lib, control = root / "var/lib", root / "run/plugwright/control.sock"
    return Settings(kubelet_dir=lib / "kubelet", state_dir=lib / "plugwright", control_socket=control)


@pytest.mark.parametrize(
    ("defect", "key", "seen"),
    [
        ("lists a device twice", "refused", "lists 'card-0' twice"),
        ("stops discovering", "discovery", "OSError: bus reset"),
    ],
)
async def test_a_plugin_without_a_valid_list_is_one_finding(root: Path, defect: str, key: str, seen: str) -> None:
    async with patient(root) as node, serving(Broken(defect), settings=own_settings(root)):
        await node.settled()
        await node.until(lambda report: report["resources"][0][key])
        check_only(await node.examine(), "discovery", seen, "journalctl -u plugwright")


async def test_a_refused_pod_is_one_finding_until_another_one_is_admitted(root: Path) -> None:
    plugin = Broken("refuses")
    async with patient(root) as node, serving(plugin, settings=own_settings(root)):
        await node.settled()
        assert node.kubelet is not None
        with pytest.raises(KubeletError, match="firmware rejected"):
            await node.kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1}))
        check_only(await node.examine(), "calls", "firmware rejected", "create the pod again")
        plugin.defect = ""
        await node.kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1}))
        assert findings(await node.examine()) == []


async def test_a_second_daemon_for_the_resource_is_one_finding_of_both(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        second = Patient(root, node.kubelet)
        second.control = root / "run/second.sock"
        async with second.served("--state-dir", root / "var/lib/second"):
            await second.settled()
            of_first = await node.examine()
            of_second = await node.examine(control_socket=Path("/run/second.sock"))
    for report in (of_first, of_second):
        check_only(report, "rivals", "another daemon of plugwright listens on plugwright-mock_gpu", "kubectl get ds -A")


def identity(root: Path, node: str) -> None:
    """Makes the certificate with which the kubelet of this node identifies itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in name])
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    valid = builder.not_valid_before(datetime(2026, 1, 1)).not_valid_after(datetime(2027, 1, 1))
    file = root / "var/lib/kubelet/pki/kubelet-client-current.pem"
    file.parent.mkdir()
    file.write_bytes(valid.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


@pytest.mark.parametrize("kubelet", ["worker-1", "worker-12.example.com"])
async def test_a_daemon_of_another_nodes_name_is_one_finding(root: Path, kubelet: str) -> None:
    async with patient(root) as node, node.served("--node-name=worker-1"):
        identity(root, kubelet)
        await node.settled()
        report = await node.examine()
    if kubelet == "worker-1":
        assert findings(report) == []
    else:
        check_only(report, "node-name", f"the kubelet's Node is {kubelet}", f"--node-name {kubelet}")
