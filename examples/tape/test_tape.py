"""The plugin's tests: no cluster, no root, no tape drive. They need plugwright with the extra `testing`, and pytest."""

import sys
from pathlib import Path

import pytest

from plugwright import ServeSettings, Split
from plugwright.testing import PodRefused, claim_requesting, pod_requesting, running
from tape import Tape


async def test_a_pod_gets_its_drive(tmp_path):
    async with running(Tape(), tmp_path) as kubelet:
        pod = await kubelet.admit(pod_requesting({"example.com/tape": 1}))
        assert pod.container("main").nodes[0].host_path.startswith("/dev/st")


async def test_two_pods_never_share_a_drive(tmp_path):
    async with running(Tape(), tmp_path) as kubelet:
        pods = [await kubelet.admit(pod_requesting({"example.com/tape": 1})) for _ in range(2)]
        assert {pod.container("main").nodes[0].host_path for pod in pods} == {"/dev/st0", "/dev/st1"}


async def test_a_third_drive_is_not_there(tmp_path):
    async with running(Tape(), tmp_path) as kubelet:
        with pytest.raises(PodRefused, match="Requested: 3, Available: 2"):
            await kubelet.admit(pod_requesting({"example.com/tape": 3}))


async def test_a_pod_keeps_its_drive_when_the_kubelet_restarts(tmp_path):
    async with running(Tape(), tmp_path) as kubelet:
        pod = await kubelet.admit(pod_requesting({"example.com/tape": 1}))
        await kubelet.restart()
        await kubelet.allocatable("example.com/tape", count=2)
        assert pod.phase == "Running"
        assert [call.method for call in kubelet.calls].count("Allocate") == 1


async def test_a_pod_gets_its_drive_by_a_claim(tmp_path):
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({"example.com/tape": 1})]))
        assert kubelet.container(pod).nodes[0].host_path.startswith("/dev/st")


async def test_both_apis_serve_the_drives_and_none_of_them_twice(tmp_path):
    serve = ServeSettings(api="both", split=Split(dra=1))
    async with running(Tape(), tmp_path, serve=serve) as kubelet:
        by_claim = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({"example.com/tape": 1})]))
        await kubelet.allocatable("example.com/tape", count=1)
        by_count = await kubelet.admit(pod_requesting({"example.com/tape": 1}))
        drives = {kubelet.container(pod).nodes[0].host_path for pod in (by_claim, by_count)}
        assert drives == {"/dev/st0", "/dev/st1"}


@pytest.mark.kubelet(version="1.35", numa=2, policy="single-numa-node")
async def test_two_drives_are_never_on_one_numa_node(kubelet, plugin_process):
    program = Path(__file__).with_name("tape.py")
    await plugin_process([sys.executable, program], "example.com/tape")  # as in production: a process of its own
    with pytest.raises(PodRefused, match="TopologyAffinityError"):
        await kubelet.admit(pod_requesting({"example.com/tape": 2}))
