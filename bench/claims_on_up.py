"""How fast `plugwright up` binds pods with a claim each, over its API: `python bench/claims_on_up.py [NODES] [PODS]`.

The nodes are bare, and this program writes their slices: API server, scheduler and controllers are measured.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plugwright.kube.api_client import ApiClient

_GROUP = "/apis/resource.k8s.io/v1"
_PODS = "/api/v1/namespaces/default/pods"
_DRIVER = "gpu.example.com"
_CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
_AT_ONCE = 8  # requests


def main() -> None:
    nodes, pods = (int(text) for text in (*sys.argv[1:], *("1000", "2000")[len(sys.argv) - 1 :]))
    command = [sys.executable, "-m", "plugwright", "up", "--bare", "--nodes", str(nodes), "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            kubeconfig = Path(json.loads(up.stdout.readline())["kubeconfig"])
            seconds = asyncio.run(_bind(kubeconfig, nodes, pods))
        finally:
            up.terminate()
    print(f"{nodes:,} nodes: {pods:,} pods bound in {seconds:.1f} s, {pods / seconds:.0f} pods/s")


async def _bind(kubeconfig: Path, nodes: int, pods: int) -> float:
    api = ApiClient.of_kubeconfig(kubeconfig)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def create(path: str, content: dict[str, Any]) -> None:
        async with turns:
            await api.create(path, content)

    try:
        selector = {"cel": {"expression": f'device.driver == "{_DRIVER}"'}}
        await create(f"{_GROUP}/deviceclasses", _object("DeviceClass", "gpu", {"selectors": [selector]}))
        template = _object("ResourceClaimTemplate", "gpu", {"spec": _CLAIM})
        await create(f"{_GROUP}/namespaces/default/resourceclaimtemplates", template)
        await asyncio.gather(*(create(f"{_GROUP}/resourceslices", _slice(number)) for number in range(nodes)))
        began = time.monotonic()
        await asyncio.gather(*(create(_PODS, _pod(number)) for number in range(pods)))
        while True:
            found, _ = await api.list(_PODS)
            if all(pod["spec"].get("nodeName") for pod in found):
                return time.monotonic() - began
            await asyncio.sleep(0.5)
    finally:
        api.close()


def _object(kind: str, name: str, spec: dict[str, Any], version: str = "resource.k8s.io/v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _slice(number: int) -> dict[str, Any]:
    node = f"node-{number + 1}"
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{index}"} for index in range(8)]
    return _object("ResourceSlice", node, {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices})


def _pod(number: int) -> dict[str, Any]:
    container = {"name": "main", "image": "bench", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}], "containers": [container]}
    return _object("Pod", f"pod-{number}", spec, "v1")


if __name__ == "__main__":
    main()
