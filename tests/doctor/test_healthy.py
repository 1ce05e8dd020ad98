"""A healthy node has no finding, and what cannot be seen is not called healthy."""

import os
from pathlib import Path

from tests.doctor.patient import Patient, check_only, findings, patient

from plugwright.doctor.diagnosis import CHECKS, diagnose
from plugwright.doctor.examined_node import DoctorTarget, ExaminedNode
from plugwright.protocol.paths import KubeletPaths


async def test_a_healthy_node_has_no_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        report = await node.examine()
    assert findings(report) == []
    assert report.result == "healthy"
    assert [check.name for check in report.checks] == list(CHECKS)
    unknown = {check.name: check.why for check in report.checks if check.state == "unknown"}
    assert unknown.keys() <= {"device-access"}  # a device node of the test leads to no driver
    seen = {check.name: check.found for check in report.checks}
    assert seen["cdi-specs"].startswith("1 specs")
    assert seen["pod-resources"] == "the kubelet knows 4 healthy devices of mock/gpu"
    assert seen["registration"] == "1 resources are registered and watched"


async def test_in_a_pod_facts_of_the_node_are_unknown_and_no_finding(root: Path) -> None:
    async with patient(root) as node, node.served():
        await node.settled()
        report = await node.examine(in_pod=True)
    assert findings(report) == []
    hidden = {check.name for check in report.checks if check.state == "unknown" and "on the node" in check.why}
    assert {"kubelet-root", "kubelet-feature-gates", "runtime-cdi", "inotify", "cdi-paths"} <= hidden


async def test_a_daemon_in_a_container_is_reached_from_the_node_through_its_process(root: Path) -> None:
    async with patient(root) as node:
        node.write("proc/90/cmdline", "/usr/bin/python\0/usr/bin/plugwright\0run\0")
        node.control = root / "proc/90/root/run/plugwright/control.sock"
        node.control.parent.mkdir(parents=True)
        async with node.served():
            await node.settled()
            report = await node.examine()
    assert findings(report) == []
    assert {check.name: check.state for check in report.checks}["daemon"] == "ok"


async def test_a_daemon_in_a_container_with_a_directory_of_its_own_is_one_finding(root: Path) -> None:
    async with patient(root) as node:
        node.write("proc/90/cmdline", "/usr/bin/python\0/usr/bin/plugwright\0run\0")
        node.control = root / "proc/90/root/run/plugwright/control.sock"
        (root / "proc/90/root/var/run/cdi").mkdir(parents=True)
        node.control.parent.mkdir(parents=True)
        async with node.served():
            await node.settled()
            report = await node.examine()
    check_only(report, "daemon-mounts", "other directories than the node's at /var/run/cdi", "kubectl delete pod")


async def test_closed_device_nodes_of_a_driver_that_makes_them_so_are_healthy(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        if node.has_devices:
            (root / "dev/nvidia0").chmod(0o660)
        node.write("proc/driver/nvidia/params", "DeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n")
        assert findings(await node.examine()) == []


async def test_what_cannot_be_read_is_unknown_and_not_healthy(root: Path) -> None:
    async with patient(root) as node, node.served_here():
        await node.settled()
        (root / "proc/sys/fs/file-nr").unlink()
        os.mkfifo(root / "proc/sys/fs/file-nr")  # a reader that waits would wait indefinitely
        node.write("proc/sys/fs/inotify/max_user_instances", "1" * 2**21)
        report = await node.examine()
    assert findings(report) == []
    unknown = {check.name: check.why for check in report.checks if check.state == "unknown"}
    assert "must be a regular file" in unknown["open-files"]
    assert "must have at most 1048576 bytes" in unknown["inotify"]


def test_an_empty_root_has_findings_and_nothing_fails(tmp_path: Path) -> None:
    report = diagnose(DoctorTarget(root=tmp_path, kubelet=KubeletPaths()))
    assert {check.name for check in findings(report)} == {"kubelet-directory", "daemon"}
    assert report.result == "findings"


def test_links_of_the_node_stay_inside_of_its_root(root: Path) -> None:
    node = Patient(root)
    node.populate()
    (root / "etc/secret").symlink_to("/../../etc/hostname")
    view = ExaminedNode(DoctorTarget(root=root))
    assert view.path("/var/run/cdi") == root / "run/cdi"
    assert view.path("/etc/secret") == root / "etc/hostname"
    assert view.path("/var/run/../lib/kubelet") == root / "lib/kubelet"
