"""`plugwright mps`: daemons as configured, and a plugin whose health follows them."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.processes import Ended, Node, ended, python, running
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet
from tests.plugins.nvidia.mps.node import MpsNode

from plugwright.config import schema
from plugwright.model import Device
from plugwright.plugins.nvidia import selection, sharing, simulated_machines
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, plan_daemons

RESOURCE = "nvidia.com/gpu-shared"


@pytest.fixture
def node(root: Path) -> MpsNode:
    return MpsNode(root)


def configured(node: MpsNode, **share: object) -> Node:
    """A simulated machine whose first two GPUs are shared by MPS."""
    plain = Node(node.root)
    prefer = share.pop("PREFER", None)
    gpus = {
        "prefer": prefer,
        "simulate": "hgx-h100",
        "select": {"index": [0, 1]},
        "share": {"by": "mps", "replicas": 4, "mps": {"root": str(node.paths.root)}, **share},
    }
    plain.config.parent.mkdir(exist_ok=True)
    plain.config.write_text(json.dumps({"resources": [{"name": RESOURCE, "nvidia": gpus}]}))
    return plain


def command(node: MpsNode, *more: object) -> list[str]:
    flags = ["--interval", "0.2", "--program", node.control_program(), "--smi", node.smi_program()]
    return python("-m", "plugwright", "mps", "run", "-c", Node(node.root).config, *flags, *more)


def plans(plain: Node) -> list[DaemonPlan]:
    """The daemons of the two GPUs."""
    entry = schema.load(plain.config).file.resources[0]
    share, selected = entry.settings.share, selection.from_config(entry.settings)
    whole = selection.select_devices(simulated_machines.load("hgx-h100").gpus, selected)
    return plan_daemons(share, sharing.split_all(whole, share))


async def report(node: MpsNode) -> tuple[int, Any]:
    shown = await ended(python("-m", "plugwright", "mps", "status", "-c", Node(node.root).config, "-o", "json"))
    return shown.code, json.loads(shown.out)


async def all_become(gpu: ObservedEndpoint, kubelet: ObservedKubelet, health: str) -> dict[str, Device]:
    for device_id in list(gpu.devices):
        await kubelet.health(RESOURCE, device_id, health)
    return dict(gpu.devices)


async def test_daemons_are_those_of_the_configuration(node: MpsNode) -> None:
    configured(node, most=2)
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready", 4)
        code, shown = await report(node)
        assert code == 0
        plans = [daemon["plan"] for daemon in shown[RESOURCE]["daemons"]]
        assert [(plan["size"], plan["percent"]) for plan in plans] == [(1, 25), (2, 50), (1, 25), (2, 50)]
        assert len({plan["gpu"] for plan in plans}) == 2
        assert node.modes_set == []
    code, shown = await report(node)
    assert (code, shown[RESOURCE]["daemons"][0]["condition"]) == (1, "stopped")


async def test_status_shows_condition_limits_and_pipe(node: MpsNode) -> None:
    plain = configured(node)
    status = python("-m", "plugwright", "mps", "status", "-c", Node(node.root).config)
    before = await ended(status)
    assert before == Ended(1, f"{RESOURCE}  no daemon: there is no {node.paths.state}\n", "")
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready", 2)
        shown = await ended(status)
    first, limits, pipe, *_ = shown.out.splitlines()
    gpu = plans(plain)[0].gpu
    assert (shown.code, first) == (0, f"{RESOURCE}  ready")
    assert limits == f"  1 of {gpu}: 25 % and 20389 MiB for each process"
    assert pipe == f"  {node.paths.pipe(gpu, 1)}, restarted 0 times, 0 servers"


async def test_the_plugins_health_follows_the_daemon_of_each_gpu(node: MpsNode, kubelet: ObservedKubelet) -> None:
    plain = configured(node)
    first, second = plans(plain)
    async with plain.daemon():
        gpu = await kubelet.endpoint(RESOURCE, 8)
        await all_become(gpu, kubelet, "Unhealthy")
        async with running(command(node)):
            await all_become(gpu, kubelet, "Healthy")
            node.fault(first, "refuse").touch()
            node.kill(first)
            await kubelet.health(RESOURCE, f"{first.gpu}::3", "Unhealthy")
            status = json.loads((await plain.ask("status", "-o", "json")).out)
            devices = status["resources"][0]["devices"]
            reasons = {device["reason"] for device in devices if device["id"].startswith(first.gpu)}
            assert all(reason.startswith("MPS daemon ") for reason in reasons)
            assert {device["health"] for device in devices if device["id"].startswith(second.gpu)} == {"Healthy"}
            node.fault(first, "refuse").unlink()
            await all_become(gpu, kubelet, "Healthy")
        await all_become(gpu, kubelet, "Unhealthy")


async def test_a_container_is_a_client_of_the_daemon(node: MpsNode, kubelet: ObservedKubelet) -> None:
    plain = configured(node, most=2)
    async with plain.daemon(), running(command(node)):
        gpu = await kubelet.endpoint(RESOURCE, 8)
        await all_become(gpu, kubelet, "Healthy")
        first, second, *_ = gpu.devices
        [answer] = await gpu.client.allocate([first, second])
        assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40779M"  # of 81559 MiB
        assert "CUDA_VISIBLE_DEVICES" not in answer.env
        host = {mount.container_path: mount.host_path for mount in answer.mounts}[answer.env["CUDA_MPS_PIPE_DIRECTORY"]]
        assert Path(host, "control").is_socket()


async def test_status_shows_the_size_of_a_share(node: MpsNode, kubelet: ObservedKubelet) -> None:
    plain = configured(node)
    async with plain.daemon():
        await kubelet.endpoint(RESOURCE, 8)
        lines = (await plain.ask("status")).out.splitlines()
        shown = lines[next(number for number, line in enumerate(lines) if line.startswith(RESOURCE)) :]
        assert shown[1].startswith("  shared: mps, not confined: the compute mode is Default")
        assert "MEMORY" in shown[2]
        assert all("19.9Gi" in line for line in shown[3:])
        assert len(shown) == 11


async def test_compute_modes_are_exclusive_while_it_runs_if_configured(node: MpsNode) -> None:
    configured(node, mps={"root": str(node.paths.root), "mode": "exclusive"})
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready", 2)
        first, second = node.modes_set
        assert first.endswith(" -c EXCLUSIVE_PROCESS")
        supervisor.signal(signal.SIGTERM)
        supervisor.signal(signal.SIGTERM)
        assert await supervisor.ends() == 0
    assert node.modes_set[2:] == [line.replace("EXCLUSIVE_PROCESS", "DEFAULT") for line in (first, second)]


async def test_a_second_supervisor_is_refused_in_one_line(node: MpsNode) -> None:
    configured(node)
    async with running(command(node)) as supervisor:
        await supervisor.err.until("condition=ready")
        second = await ended(command(node, "--log-level", "error"))
    assert second.code == 1
    assert "another process supervises the MPS daemons of nvidia.com/gpu-shared" in second.err


async def test_run_without_a_gpu_waits_and_reports_it(node: MpsNode) -> None:
    plain = configured(node)
    content = json.loads(plain.config.read_text())
    content["resources"][0]["nvidia"]["select"] = {"model": "*A100*"}
    plain.config.write_text(json.dumps(content))
    async with running(command(node)) as supervisor:
        await supervisor.err.until("no GPU of this resource can be shared by MPS")
        async with asyncio.timeout(60):
            while not node.paths.state.exists():
                await asyncio.sleep(0.01)
        code, shown = await report(node)
    assert code == 1
    assert shown[RESOURCE]["problem"] == "no GPU of this resource can be shared by MPS"


@pytest.mark.parametrize("flags", [[], ["--resource", "nvidia.com/other"]])
async def test_a_file_without_mps_is_refused(node: MpsNode, flags: list[str]) -> None:
    configured(node) if flags else Node(node.root).configure(gpu={"count": 1})
    refused = await ended(command(node, *flags))
    name = "nvidia.com/other " if flags else ""
    assert refused == Ended(1, "", f"plugwright: plugwright.yaml: no resource {name}is shared by MPS\n")


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({"by": "time-slicing"}, "share.mps is only valid with `by: mps`, got `by: time-slicing`"),
        ({"replicas": 49}, "share.replicas must be at most 48, the clients of MPS, got 49"),
        ({"most": 2, "PREFER": "spread"}, "with MPS the shares of a container must be of one GPU"),
        ({"mps": {"root": "run"}}, "a path must be absolute, got 'run'"),
        ({"by": "vgpu", "mps": None, "vgpu": {"library": "x"}}, "a path must be absolute, got 'x'"),
    ],
)
async def test_contradicting_settings_are_refused(node: MpsNode, share: dict[str, object], message: str) -> None:
    plain = configured(node, **share)
    refused = await ended(python("-m", "plugwright", "run", "--check", "-c", plain.config))
    assert refused.code == 1
    assert message in refused.err


async def test_a_name_template_is_refused_with_mps(node: MpsNode) -> None:
    plain = configured(node)
    plain.config.write_text(plain.config.read_text().replace(RESOURCE, "nvidia.com/{model}"))
    refused = await ended(python("-m", "plugwright", "run", "--check", "-c", plain.config))
    assert "`share.by: mps` needs a literal resource name" in refused.err


async def test_print_config_shows_every_value(node: MpsNode) -> None:
    plain = configured(node)
    shown = await ended(python("-m", "plugwright", "run", "--print-config", "json", "-c", plain.config))
    values = {row["key"]: (row["value"], row["source"]) for row in json.loads(shown.out)}
    assert values["resources[0].nvidia.share.mps.root"] == (str(node.paths.root), "plugwright.yaml:1")
    assert values["resources[0].nvidia.share.mps.mode"] == ("leave", "default")
    assert values["resources[0].nvidia.select.index"] == ([0, 1], "plugwright.yaml:1")
