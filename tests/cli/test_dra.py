"""`plugwright dra`: what drivers publish and which claims have it, read from an API server over HTTP."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.apiserver.serving import TOKEN
from tests.cli.processes import Ended, ended
from tests.kube.serving import served_api

from plugwright.cli.dra import incomplete_pools, listed_claims, published_devices

GROUP, VERSION = "/apis/resource.k8s.io/v1", "resource.k8s.io/v1"


def device_slice(name: str, generation: int = 1, count: int = 1, devices: tuple[str, ...] = ("st0",)) -> dict[str, Any]:
    attributes = {"model": {"string": "LTO-9"}, "slot": {"int": 4}}
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": "tape.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": generation, "resourceSliceCount": count},
            "devices": [
                {"name": device, "attributes": attributes, "capacity": {"memory": {"value": "1Gi"}}}
                for device in devices
            ],
        },
    }


def claim(name: str, *devices: str, pods: tuple[str, ...] = (), allocated: bool = True) -> dict[str, Any]:
    results = [{"driver": "tape.example.com", "pool": "n1", "device": key, "request": "tape"} for key in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": "u"} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if allocated else {}
    return {"metadata": {"namespace": "default", "name": name}, "status": status}


SLICES = [device_slice("a", devices=("st10", "st9")), device_slice("old", generation=0, devices=("gone",))]
CLAIMS = [claim("read", "st9", pods=("reader",)), claim("waits", allocated=False), claim("left", "st10")]


def test_devices_are_those_of_the_newest_generation_with_their_claims() -> None:
    devices = published_devices(SLICES, CLAIMS)
    assert [(device["device"], device["claims"]) for device in devices] == [
        ("st9", ["default/read"]),
        ("st10", ["default/left"]),
    ]
    assert devices[0]["attributes"] == {"model": "LTO-9", "slot": 4}


def test_a_pool_without_all_of_its_slices_is_said() -> None:
    [(pool, text)] = incomplete_pools([device_slice("a", count=2)])
    assert text == "pool n1 of tape.example.com is incomplete: it has 1 of 2 slices, so none is used"
    assert pool["node"] == "n1"


def test_a_claim_has_a_state() -> None:
    ended = claim("ends", "st0")
    ended["metadata"]["deletionTimestamp"] = "2026-11-16T08:00:00Z"
    states = {listed["name"]: listed["state"] for listed in listed_claims([*CLAIMS, ended])}
    assert states == {"ends": "deleting", "left": "allocated", "read": "reserved", "waits": "pending"}


async def test_both_lists_are_read_from_the_cluster_of_a_kubeconfig(tmp_path: Path) -> None:
    async with served_api(tmp_path / "api") as server:
        api = server.client()
        for document in SLICES[:1]:
            await api.create(f"{GROUP}/resourceslices", {"apiVersion": VERSION, "kind": "ResourceSlice", **document})
        requests = [{"name": "tape", "exactly": {"deviceClassName": "tape.example.com"}}]
        wanted = {"metadata": {"name": "read"}, "spec": {"devices": {"requests": requests}}}
        path = f"{GROUP}/namespaces/default/resourceclaims"
        await api.create(path, {"apiVersion": VERSION, "kind": "ResourceClaim", **wanted})
        kubeconfig = write_kubeconfig(tmp_path, api.url, tmp_path / "api")
        slices = await dra("slices", "--kubeconfig", str(kubeconfig))
        head, first, second = slices.out.splitlines()
        assert head.split() == ["NODE", "DRIVER", "DEVICE", "TAINTS", "CLAIM", "ATTRIBUTES"]
        assert first.split() == ["n1", "tape.example.com", "st9", "-", "-", "memory=1Gi", "model=LTO-9", "slot=4"]
        assert second.split()[2] == "st10"
        others = await dra("slices", "--kubeconfig", str(kubeconfig), "--node", "n2", "-o", "json")
        assert json.loads(others.out) == {"devices": [], "incomplete": []}
        claims = json.loads((await dra("claims", "--kubeconfig", str(kubeconfig), "-o", "json")).out)
        assert claims == {
            "claims": [{"namespace": "default", "name": "read", "state": "pending", "devices": [], "pods": []}]
        }
        api.close()


async def test_a_cluster_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, "https://127.0.0.1:1", tmp_path)
    done = await dra("claims", "--kubeconfig", str(kubeconfig))
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "127.0.0.1:1" in done.err


def write_kubeconfig(directory: Path, url: str, credentials: Path) -> Path:
    cluster = {"server": url, **({"certificate-authority": str(ca)} if (ca := credentials / "ca.crt").exists() else {})}
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


async def dra(*arguments: str) -> Ended:
    return await ended([sys.executable, "-m", "plugwright", "dra", *arguments], dict(os.environ))
