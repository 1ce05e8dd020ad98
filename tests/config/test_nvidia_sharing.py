"""Shares of GPUs from the operator's file through the daemon to a kubelet."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.cli.processes import Node
from tests.observed_kubelet import ObservedKubelet

from plugwright.config import schema
from plugwright.model import PreferenceRequest
from plugwright.plugins.nvidia.config import NvidiaShare

PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("nvidia-sharing.md", "vgpu.md")]
BLOCKS = [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
RESOURCE = "nvidia.com/gpu-small"


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)


def configure(node: Node, share: dict[str, object], **more: object) -> None:
    nvidia = {"simulate": "hgx-h100", "share": share, **more}
    node.config.parent.mkdir(exist_ok=True)
    node.config.write_text(json.dumps({"resources": [{"name": RESOURCE, "nvidia": nvidia}]}))


async def report(node: Node) -> dict[str, Any]:
    (resource,) = json.loads((await node.ask("status", "-o", "json")).out)["resources"]
    assert isinstance(resource, dict)
    return resource


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_in_the_docs_are_valid(block: str) -> None:
    content = yaml.safe_load(block)
    if "resources" in content:
        msgspec.convert(content, schema.file_type(), strict=True)
    else:
        msgspec.convert(content["share"], NvidiaShare, strict=True)


async def test_a_container_with_a_vgpu_share_gets_its_limits(node: Node, kubelet: ObservedKubelet) -> None:
    library = node.root / "libvgpu.so"
    library.touch()
    paths = {"library": str(library), "root": str(node.root / "vgpu"), "locks": str(node.root / "locks")}
    configure(node, {"by": "vgpu", "library": "hami", "memory": "10Gi", "vgpu": paths})
    async with node.daemon():
        gpu = await kubelet.endpoint(RESOURCE, 7 * 8)
        first, second = [device_id for device_id in gpu.devices if "::10240m-14c-" in device_id][:2]
        [answer] = await gpu.client.allocate([first, second])
        shown = await report(node)
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
    limits = {mount.container_path: mount for mount in answer.mounts}["/overrideEnv"]
    assert limits.read_only
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=20480m\n" in Path(limits.host_path).read_text()
    attributes = shown["devices"][0]["attributes"]
    assert (attributes["memory"], attributes["percent"]) == (10 * 2**30, 14)
    assert attributes["sharing"] == "vgpu"
    assert attributes["notes"]["shared"].startswith("vgpu, not confined")


@pytest.mark.parametrize(
    ("share", "prefer", "gpus"),
    [
        ({"by": "mps", "replicas": 4, "most": 3}, None, 1),
        ({"by": "mps", "replicas": 4, "most": 3}, "packed", 1),
        ({"by": "vgpu", "replicas": 4}, None, 1),
        ({"by": "time-slicing", "replicas": 4}, None, 3),
        ({"by": "time-slicing", "replicas": 4}, "packed", 1),
    ],
)
async def test_units_that_make_a_larger_share_are_preferred_on_one_gpu(
    node: Node, kubelet: ObservedKubelet, share: dict[str, object], prefer: str | None, gpus: int
) -> None:
    configure(node, share, **({"prefer": prefer} if prefer else {}))
    async with node.daemon():
        gpu = await kubelet.endpoint(RESOURCE, 32)
        [chosen] = await gpu.client.prefer(PreferenceRequest(tuple(gpu.devices), (), 3))
    assert len({device_id.partition("::")[0] for device_id in chosen}) == gpus


async def test_a_time_sliced_container_is_told_no_size_since_nothing_limits_it(
    node: Node, kubelet: ObservedKubelet
) -> None:
    configure(node, {"replicas": 2, "most": 1})
    async with node.daemon():
        gpu = await kubelet.endpoint(RESOURCE, 16)
        first, *_ = gpu.devices
        [answer] = await gpu.client.allocate([first])
    assert not answer.env.keys() & {"PLUGWRIGHT_GPU_MEMORY", "PLUGWRIGHT_GPU_PERCENT"}
    assert answer.env["PLUGWRIGHT_GPU_UUID"] == first.partition("::")[0]


async def test_more_units_than_the_kubelet_accepts_are_refused_with_a_proposal(node: Node) -> None:
    configure(node, {"memory": "1Mi"})
    async with node.daemon() as daemon:
        line = await daemon.err.until("the kubelet accepts 4,194,304")
    assert re.search(r"try memory: \d+Mi", line)  # which fits: tests/plugins/nvidia/test_list_size.py
