"""`plugwright kubelet --api` as the author of a DRA driver meets it: claims in files, beside a driver's process."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli.processes import Running, python, running
from tests.cli.test_kubelet_command import Workspace, states

DRIVER = """
import asyncio, base64, json, os, ssl, sys, urllib.request
from pathlib import Path
import yaml
from plugwright.protocol import dra, registration, transport
from plugwright.protocol.dra import PreparedDevice
from plugwright.protocol.registration import PluginInfo

NAME, ROOT = "gpu.example.com", Path(sys.argv[1])
CONFIG = yaml.safe_load((ROOT / "kubeconfig").read_text())
CLUSTER, TOKEN = CONFIG["clusters"][0]["cluster"], CONFIG["users"][0]["user"]["token"]
CONTEXT = ssl.create_default_context(cadata=base64.b64decode(CLUSTER["certificate-authority-data"]).decode())

def ask(path, body=None):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(CLUSTER["server"] + path, data, headers)
    return json.load(urllib.request.urlopen(request, context=CONTEXT))

class Driver:
    async def prepare(self, claims):
        answer = {}
        for claim in claims:
            path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            found = await asyncio.to_thread(ask, path)
            results = found["status"]["allocation"]["devices"]["results"]
            answer[claim.uid] = [
                PreparedDevice(one["pool"], one["device"], (one["request"],), (f"{NAME}/claim={one['device']}",))
                for one in results
            ]
        return answer

    async def unprepare(self, claims):
        return {claim.uid: "" for claim in claims}

    async def announce(self):
        return PluginInfo(NAME, dra.DRA_PLUGIN, str(ROOT / "plugins" / NAME / "dra.sock"), dra.VERSIONS)

    async def notify(self, registered, error):
        print("registered" if registered else error, flush=True)

async def main():
    driver, folder = Driver(), ROOT / "plugins" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    node = await asyncio.to_thread(ask, "/api/v1/nodes/node")
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NAME, "nodeName": "node", "pool": pool, "devices": [{"name": "gpu-0"}]}
    await asyncio.to_thread(ask, "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    async with transport.serve(folder / "dra.sock", dra.methods(driver)):
        methods = registration.announcement_methods(driver)
        async with transport.serve(ROOT / "plugins_registry" / f"{NAME}-reg.sock", methods):
            await asyncio.Event().wait()

asyncio.run(main())
"""


def claim(name: str = "one", device: str = "gpu-0") -> str:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node", "device": device}
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}} if device else {},
    }
    return json.dumps(document)


def pod(name: str = "web", claim_name: str = "one") -> str:
    container = {"name": "main", "resources": {"claims": [{"name": "dev"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "dev", "resourceClaimName": claim_name}]}
    return json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


@asynccontextmanager
async def driver(workspace: Workspace) -> AsyncIterator[Running]:
    async with running(python("-c", DRIVER, workspace.root)) as process:
        await process.out.until("registered")
        yield process


async def test_a_pod_gets_the_devices_of_its_claim_once_it_is_allocated_and_a_restart_wipes_the_slices(
    workspace: Workspace,
) -> None:
    async with workspace.kubelet("--api", "--pods", workspace.pods) as kubelet:
        await kubelet.out.until(f"A DRA driver finds its claims by KUBECONFIG={workspace.root}/kubeconfig")
        async with driver(workspace):
            workspace.write("a", f"{pod()}\n---\n{claim()}\n")
            await kubelet.out.until("prepared                 default/one: gpu.example.com/node/gpu-0")
            await kubelet.out.until("started                  default/web/main")
            await kubelet.out.until("CDI        gpu.example.com/claim=gpu-0")
            (workspace.pods / "a.yaml").unlink()
            await kubelet.out.until("unprepared               default/one")
            await kubelet.out.until("deleted                  default/web")
            workspace.write("claim", claim("two", device=""))
            workspace.write("pod", pod("waits", "two"))
            await kubelet.out.until("at most 60 s, because ResourceClaim default/two is not allocated")
            workspace.write("claim", claim("two"))
            await kubelet.out.until("started                  default/waits/main")
            kubelet.signal(signal.SIGUSR1)
            await kubelet.out.until("deleted                  ResourceSlices: of the node", count=2)
        kubelet.signal(signal.SIGINT)
        assert await kubelet.ends() == 0
    assert not (workspace.root / "kubeconfig").exists()


async def test_at_the_end_claims_are_given_back(workspace: Workspace) -> None:
    path = workspace.write("a", f"{pod()}\n---\n{claim()}\n")
    async with workspace.kubelet(path) as kubelet:
        await kubelet.out.until("registration")
        async with driver(workspace):
            await kubelet.out.until("waiting                  default/web: FailedPrepareDynamicResources")
            await kubelet.out.until("prepared                 default/one")
            kubelet.signal(signal.SIGTERM)
            await kubelet.out.until("unprepared               default/one")
            assert await kubelet.ends() == 0


async def test_a_claim_without_an_api_or_with_an_unknown_field_is_invalid(workspace: Workspace) -> None:
    done, records = await workspace.once(workspace.write("a", pod()), "--timeout", "0")
    assert done.code == 1
    assert "fetch ResourceClaim one: this kubelet has no API server" in done.out
    wrong = workspace.write("b", claim().replace('"requests"', '"request"'))
    done, _ = await workspace.once(wrong, workspace.write("a", pod()))
    assert (done.code, "unknown field" in done.err) == (1, True), done.err
    nameless = workspace.write("b", claim("").replace('"status"', '"state"'))
    done, _ = await workspace.once(nameless)
    assert "a ResourceClaim must have a name" in done.err
    assert states(records, "admitted") == [("admitted", "default/web")]
