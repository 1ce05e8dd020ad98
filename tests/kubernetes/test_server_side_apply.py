"""The same applies, updates and patches to the real API server and to ours: objects, owners and conflicts are alike.

Compared are codes, the texts of refusals, what the objects have, and their managed fields; not times, ids and versions.
"""

import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.apiserver.serving import TOKEN, populated, server
from tests.apiserver.test_kubernetes_fields import without_nulls
from tests.kubernetes.lone_api_server import lone_api_server

from plugwright.apiserver.app import application
from plugwright.apiserver.store import Store

MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES, NODES = "/apis/resource.k8s.io/v1/resourceslices", "/api/v1/nodes"
KINDS = {MAPS: ("v1", "ConfigMap"), PODS: ("v1", "Pod"), NODES: ("v1", "Node")}
KINDS |= {CLAIMS: ("resource.k8s.io/v1", "ResourceClaim"), SLICES: ("resource.k8s.io/v1", "ResourceSlice")}


@dataclass(frozen=True, slots=True)
class Sent:
    method: str
    path: str
    body: Any
    content_type: str = "application/json"


def apply(collection: str, name: str, body: Any, manager: str = "alice", force: bool = False, part: str = "") -> Sent:
    api_version, kind = KINDS[collection]
    document = {"apiVersion": api_version, "kind": kind, **body}
    document["metadata"] = {"name": name, **body.get("metadata", {})}
    query = f"fieldManager={manager}" + ("&force=true" if force else "")
    return Sent("PATCH", f"{collection}/{name}{part}?{query}", document, "application/apply-patch+yaml")


def create(collection: str, body: Any, manager: str = "creator") -> Sent:
    return Sent("POST", f"{collection}?fieldManager={manager}", body)


def merge(path: str, body: Any, manager: str = "bob", kind: str = "merge-patch") -> Sent:
    return Sent("PATCH", f"{path}?fieldManager={manager}", body, f"application/{kind}+json")


def container(name: str, **members: Any) -> Any:
    return {"name": name, "image": "busybox", **members}


SPEC = {"automountServiceAccountToken": False}
PORTS = [{"containerPort": 80, "name": "http"}, {"containerPort": 80, "protocol": "UDP"}]
REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}}
DEVICE = {"driver": "d.example.com", "pool": "p", "device": "gpu-0"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Here",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
RESULT = {**DEVICE, "request": "gpu"}
STEPS = [
    # Config maps: a map of values
    apply(MAPS, "one", {"data": {"a": "1", "b": "2"}, "metadata": {"labels": {"x": "y"}}}),
    apply(MAPS, "one", {"data": {"a": "1", "b": "2"}, "metadata": {"labels": {"x": "y"}}}),
    apply(MAPS, "one", {"data": {"b": "3"}}),
    merge(f"{MAPS}/one", {"data": {"b": "4", "c": "5"}}),
    apply(MAPS, "one", {"data": {"b": "6"}}),
    apply(MAPS, "one", {"data": {"b": "6", "c": "7"}}),
    apply(MAPS, "one", {"data": {"b": "6"}}, force=True),
    apply(MAPS, "one", {"data": {"b": "6"}}, manager="carol"),
    apply(MAPS, "one", {}),
    merge(f"{MAPS}/one", {"data": {"b": None}}),
    apply(MAPS, "one", {"immutable": False, "metadata": {"finalizers": ["example.com/a"]}}),
    apply(MAPS, "one", {"metadata": {"finalizers": ["example.com/b"]}}, manager="carol"),
    apply(MAPS, "one", {}),
    apply(MAPS, "one", {}, manager="carol"),
    apply(MAPS, "one", {"data": {"z": "1"}, "metadata": {"resourceVersion": "1"}}),
    apply(MAPS, "one", {"metadata": {"managedFields": []}}),
    apply(MAPS, "one", {"bogus": 1}),
    apply(MAPS, "one", {"metadata": {"name": "other"}}),
    Sent("PATCH", f"{MAPS}/one", {"apiVersion": "v1", "kind": "ConfigMap"}, "application/apply-patch+yaml"),
    create(MAPS, {"metadata": {"name": "two", "labels": {"a": "b"}}, "data": {"k": "v"}}),
    apply(MAPS, "two", {"data": {"k": "v"}}),
    apply(MAPS, "two", {"data": {"k": "w"}}),
    Sent("PUT", f"{MAPS}/two?fieldManager=dave", {"metadata": {"name": "two"}, "data": {"k": "x", "l": "y"}}),
    merge(f"{MAPS}/two", [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}], kind="json-patch"),
    apply(MAPS, "two", {"data": {"k": "q"}}),
    # Pods: lists by keys
    apply(
        PODS, "p", {"spec": {**SPEC, "containers": [container("a", ports=PORTS, env=[{"name": "E", "value": "1"}])]}}
    ),
    apply(PODS, "p", {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}, manager="bob"),
    merge(f"{PODS}/p", {"metadata": {"annotations": {"n": "1"}}}),
    merge(f"{PODS}/p", {"spec": {"containers": [{"name": "a", "image": "other"}]}}, kind="strategic-merge-patch"),
    apply(PODS, "p", {"spec": {"containers": [container("a")]}}, manager="bob"),
    apply(PODS, "p", {"spec": {"containers": [container("a"), container("a")]}}),
    create(PODS, {"metadata": {"name": "q"}, "spec": {**SPEC, "containers": [container("b"), container("c")]}}),
    apply(PODS, "p", {"status": {"phase": "Running"}}, manager="node", part="/status"),
    merge(f"{PODS}/p/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, manager="kubelet"),
    # Nodes: taints are one field, conditions are not
    create(NODES, {"metadata": {"name": "worker"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    apply(NODES, "worker", {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}),
    apply(NODES, "worker", {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}, force=True),
    apply(NODES, "worker", {"metadata": {"labels": {"l": "1"}}}),
    # A DRA driver's status of its devices
    apply(CLAIMS, "c", {"spec": REQUESTS}),
    merge(f"{CLAIMS}/c/status", {"status": {"allocation": {"devices": {"results": [RESULT]}}}}, manager="scheduler"),
    apply(CLAIMS, "c", {"status": {"devices": [{**DEVICE, "conditions": [READY]}]}}, manager="driver", part="/status"),
    apply(CLAIMS, "c", {"status": {"devices": [{**DEVICE, "data": {"ip": "x"}}]}}, manager="other", part="/status"),
    apply(CLAIMS, "c", {"status": {"devices": [DEVICE]}}, manager="driver", part="/status"),
    apply(CLAIMS, "c", {"status": {}}, manager="driver", part="/status"),
]
IDENTITY = ("creationTimestamp", "generation", "resourceVersion", "uid")


def comparable(code: int, document: Any) -> Any:
    """With one word for times and ids; of a Status only its text and causes."""
    if document.get("kind") == "Status":
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", document["message"])
        return [code, document.get("reason"), text]
    metadata = {name: value for name, value in document["metadata"].items() if name not in IDENTITY}
    for entry in metadata.get("managedFields", ()):
        entry["time"] = "TIME"
    managed = sorted(metadata.pop("managedFields", ()), key=lambda entry: (entry["operation"], entry["manager"]))
    owned = {name: document.get(name) for name in ("data", "immutable") if name in document}
    if document["kind"] == "ResourceClaim":
        owned["status"] = without_nulls(document.get("status") or {})
    return [code, metadata, owned, managed]


async def played(client: httpx2.AsyncClient, sent: Sent) -> Any:
    content = json.dumps(sent.body).encode()
    answer = await client.request(sent.method, sent.path, content=content, headers={"content-type": sent.content_type})
    return comparable(answer.status_code, answer.json())


@asynccontextmanager
async def ours() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(application(server(populated(Store()))))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client


@pytest.mark.essential
async def test_applies_make_the_same_objects_owners_and_conflicts(tmp_path: Path) -> None:
    async with lone_api_server(tmp_path) as real, ours() as our_client:
        trusted = ssl.create_default_context(cafile=str(real.certificate))
        headers = {"authorization": f"Bearer {real.token}"}
        async with httpx2.AsyncClient(base_url=real.url, headers=headers, verify=trusted) as client:
            account = create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            await played(client, account)  # no controller manager makes it there
            differ = []
            for sent in STEPS:
                theirs, mine = await played(client, sent), await played(our_client, sent)
                if theirs != mine:
                    described = f"{sent.method} {sent.path} {json.dumps(sent.body)}"
                    shown = [json.dumps(part, sort_keys=True) for part in (theirs, mine)]
                    differ.append(f"{described}\nreal {shown[0]}\nours {shown[1]}")
    assert not differ, "\n".join(differ)
