"""`plugwright mps`: daemons as the operator's file asks for them, and a plugin whose health follows them."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.processes import Ended, Node, ended, python, running
from tests.plugins.nvidia.mps.node import MpsNode

from plugwright.model import Device
from tiny_kubelet import Endpoint, TinyKubelet

RESOURCE = "nvidia.com/gpu-shared"


@pytest.fixture
def node(root: Path) -> MpsNode:
    return MpsNode(root)


def configured(node: MpsNode, **share: object) -> Node:
    """A simulated machine whose first two GPUs are shared by MPS."""
    plain = Node(node.root)
    gpus = {
        "simulate": "hgx-h100",
        "select": {"index": [0, 1]},
        "share": {"by": "mps", "replicas": 4, "mps": {"root": str(node.place.root)}, **share},
    }
    plain.config.parent.mkdir(exist_ok=True)
    plain.config.write_text(json.dumps({"resources": [{"name": RESOURCE, "nvidia": gpus}]}))
    return plain


def command(node: MpsNode, *more: object) -> list[str]:
    flags = ["--interval", "0.05", "--program", node.control_program(), "--smi", node.smi_program()]
    return python("-m", "plugwright", "mps", "run", "-c", Node(node.root).config, *flags, *more)


async def report(node: MpsNode) -> tuple[int, Any]:
    asked = await ended(python("-m", "plugwright", "mps", "status", "-c", Node(node.root).config, "-o", "json"))
    return asked.code, json.loads(asked.out)


async def every(gpu: Endpoint, kubelet: TinyKubelet, health: str) -> dict[str, Device]:
    for device_id in list(gpu.devices):
        await kubelet.health(RESOURCE, device_id, health)
    return dict(gpu.devices)


async def test_daemons_are_those_that_the_file_asks_for(node: MpsNode) -> None:
    configured(node, most=2)
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready", 2)
        code, found = await report(node)
        assert code == 0
        assert [(each["plan"]["size"], each["plan"]["percent"]) for each in found[RESOURCE]["daemons"]] == [
            (1, 25),
            (2, 50),
        ]
        assert node.modes_set == []
    code, found = await report(node)
    assert (code, found[RESOURCE]["daemons"][0]["condition"]) == (1, "stopped")


async def test_status_says_it_in_words(node: MpsNode) -> None:
    configured(node)
    status = python("-m", "plugwright", "mps", "status", "-c", Node(node.root).config)
    before = await ended(status)
    assert before == Ended(1, f"{RESOURCE}  no daemon: there is no {node.place.state}\n", "")
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready")
        shown = await ended(status)
    first, limits, place = shown.out.splitlines()
    assert (shown.code, first) == (0, f"{RESOURCE}  ready")
    assert limits.startswith("  1 of a GPU: 25 % and 20389 MiB of GPU-")
    assert place == f"  {node.place.pipe(1)}, restarted 0 times, 0 servers"


async def test_the_plugins_health_follows_the_daemon_both_ways(node: MpsNode, kubelet: TinyKubelet) -> None:
    plain = configured(node)
    async with plain.daemon():
        gpu = await kubelet.endpoint(RESOURCE, 8)
        await every(gpu, kubelet, "Unhealthy")
        async with running(command(node)):
            await every(gpu, kubelet, "Healthy")
            node.fault(1, "refuse").touch()
            node.kill(1)
            await every(gpu, kubelet, "Unhealthy")
            told = json.loads((await plain.ask("status", "-o", "json")).out)
            reasons = {each["reason"] for each in told["resources"][0]["devices"]}
            assert all(reason.startswith("MPS daemon ") for reason in reasons)
            node.fault(1, "refuse").unlink()
            await every(gpu, kubelet, "Healthy")
        await every(gpu, kubelet, "Unhealthy")


async def test_a_pod_becomes_a_client_of_the_daemon(node: MpsNode, kubelet: TinyKubelet) -> None:
    plain = configured(node, most=2)
    async with plain.daemon(), running(command(node)):
        gpu = await kubelet.endpoint(RESOURCE, 8)
        await every(gpu, kubelet, "Healthy")
        first, second, *_ = gpu.devices
        [answer] = await gpu.client.allocate([first, second])
        assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40779M"  # of 81559 MiB
        assert answer.env["CUDA_VISIBLE_DEVICES"] == first.partition("::")[0]
        host = {mount.container_path: mount.host_path for mount in answer.mounts}[answer.env["CUDA_MPS_PIPE_DIRECTORY"]]
        assert Path(host, "control").is_socket()


async def test_status_shows_what_a_share_stands_for(node: MpsNode, kubelet: TinyKubelet) -> None:
    plain = configured(node)
    async with plain.daemon():
        await kubelet.endpoint(RESOURCE, 8)
        shown = (await plain.ask("status")).out.splitlines()
        assert shown[1].startswith("  shared: mps, not confined: the compute mode is Default")
        assert "MEMORY" in shown[2]
        assert all("19.9Gi" in line for line in shown[3:])
        assert len(shown) == 11


async def test_compute_modes_are_exclusive_while_it_runs_if_asked(node: MpsNode) -> None:
    configured(node, mps={"root": str(node.place.root), "mode": "exclusive"})
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready")
        first, second = node.modes_set
        assert first.endswith(" -c EXCLUSIVE_PROCESS")
        supervisor.signal(signal.SIGTERM)
        supervisor.signal(signal.SIGTERM)
        assert await supervisor.ends() == 0
    assert node.modes_set[2:] == [each.replace("EXCLUSIVE_PROCESS", "DEFAULT") for each in (first, second)]


async def test_a_second_supervisor_is_refused_in_one_line(node: MpsNode) -> None:
    configured(node)
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready")
        second = await ended(command(node, "--log-level", "error"))
    assert second.code == 1
    assert "another process looks after the MPS daemons of nvidia.com/gpu-shared" in second.err


async def test_without_a_gpu_it_waits_and_says_so(node: MpsNode) -> None:
    plain = configured(node)
    content = json.loads(plain.config.read_text())
    content["resources"][0]["nvidia"]["select"] = {"model": "*A100*"}
    plain.config.write_text(json.dumps(content))
    async with running(command(node)) as supervisor:
        await supervisor.err.until("there is no GPU here that MPS could share")
        async with asyncio.timeout(30):
            while not node.place.state.exists():
                await asyncio.sleep(0.01)
        code, found = await report(node)
    assert code == 1
    assert found[RESOURCE]["problem"] == "there is no GPU here that MPS could share for this resource"


@pytest.mark.parametrize("flags", [[], ["--resource", "nvidia.com/other"]])
async def test_a_file_without_mps_is_refused(node: MpsNode, flags: list[str]) -> None:
    configured(node) if flags else Node(node.root).configure(gpu={"count": 1})
    refused = await ended(command(node, *flags))
    name = "nvidia.com/other " if flags else ""
    assert refused == Ended(1, "", f"plugwright: plugwright.yaml: no resource {name}is shared by MPS\n")


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ({"by": "time-slicing"}, "`mps` is for `by: mps`, and this is by time-slicing"),
        ({"replicas": 49}, "an MPS daemon serves 48 clients: replicas is not 49"),
        ({"mps": {"root": "run"}}, "the directories of MPS are absolute paths, not 'run'"),
        ({"by": "vgpu", "mps": None, "vgpu": {"library": "x"}}, "the paths of vgpu are absolute, not 'x'"),
    ],
)
async def test_what_does_not_go_together_is_said(node: MpsNode, share: dict[str, object], said: str) -> None:
    plain = configured(node, **share)
    refused = await ended(python("-m", "plugwright", "run", "--check", "-c", plain.config))
    assert refused.code == 1
    assert said in refused.err


async def test_a_name_that_is_found_out_has_no_daemon(node: MpsNode) -> None:
    plain = configured(node)
    plain.config.write_text(plain.config.read_text().replace(RESOURCE, "nvidia.com/{model}"))
    refused = await ended(python("-m", "plugwright", "run", "--check", "-c", plain.config))
    assert "a resource that is shared by MPS has its name written out" in refused.err


async def test_every_value_in_force_is_shown_one_by_one(node: MpsNode) -> None:
    plain = configured(node)
    shown = await ended(python("-m", "plugwright", "run", "--print-config", "json", "-c", plain.config))
    values = {each["key"]: (each["value"], each["source"]) for each in json.loads(shown.out)}
    assert values["resources[0].nvidia.share.mps.root"] == (str(node.place.root), "plugwright.yaml:1")
    assert values["resources[0].nvidia.share.mps.mode"] == ("leave", "default")
    assert values["resources[0].nvidia.select.index"] == ([0, 1], "plugwright.yaml:1")
