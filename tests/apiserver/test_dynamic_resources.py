"""ResourceSlices and ResourceClaims: the limits of kube-apiserver, which a driver must meet before it publishes."""

from copy import deepcopy
from typing import Any

import pytest
from tests.apiserver.serving import Api, Json

ROOT = "/apis/resource.k8s.io/v1"
SLICES, CLAIMS = f"{ROOT}/resourceslices", f"{ROOT}/namespaces/default/resourceclaims"


def resource_slice(**changes: Any) -> Json:
    spec: Json = {
        "driver": "gpu.example.com",
        "nodeName": "node",
        "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"model": {"string": "A"}, "driverVersion": {"version": "570.86.15"}},
                "capacity": {"memory": {"value": "80Gi"}},
            }
        ],
    }
    return {"metadata": {"generateName": "00000-"}, "spec": {**spec, **changes}}


def devices(count: int, **more: Any) -> list[Json]:
    return [{"name": f"gpu-{number}", **more} for number in range(count)]


async def test_slices_are_found_by_driver_and_node(api: Api) -> None:
    made = await api("POST", SLICES, resource_slice())
    assert made.code == 201, made.body
    await api("POST", SLICES, resource_slice(driver="nic.example.com"))
    found = await api("GET", f"{SLICES}?fieldSelector=spec.driver=gpu.example.com,spec.nodeName=node")
    assert found.names == [made.body["metadata"]["name"]]
    assert (await api("DELETE", f"{SLICES}?fieldSelector=spec.nodeName=node")).code == 200
    assert (await api("GET", SLICES)).names == []


BAD = {
    "129 devices": ({"devices": devices(129)}, "spec.devices: Too many: 129: must have at most 128 items"),
    "65 with a taint": (
        {"devices": devices(65, taints=[{"key": "a", "effect": "NoSchedule"}])},
        "spec.devices: Too many: 65: must have at most 64 items",
    ),
    "both": (
        {"sharedCounters": [{"name": "card", "counters": {}}]},
        "only one of `sharedCounters` or `devices` is allowed",
    ),
    "nowhere": ({"nodeName": None}, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"),
    "a capital": (
        {"devices": [{"name": "GPU-0"}]},
        'spec.devices[0].name: Invalid value: "GPU-0": a lowercase RFC 1123',
    ),
    "twice": ({"devices": [{"name": "a"}, {"name": "a"}]}, 'spec.devices[1]: Duplicate value: "a"'),
    "a dash": ({"devices": [{"name": "a", "attributes": {"a-b": {"int": 1}}}]}, "a valid C identifier must start with"),
    "a leading zero": (
        {"devices": [{"name": "a", "attributes": {"v": {"version": "535.104.05"}}}]},
        'Invalid value: "535.104.05": must be a string compatible with semver.org spec 2.0.0',
    ),
    "a long text": (
        {"devices": [{"name": "a", "attributes": {"s": {"string": "ü" * 33}}}]},
        "Too long: may not be more than 64 bytes",
    ),
    "two values": (
        {"devices": [{"name": "a", "attributes": {"s": {"string": "a", "int": 1}}}]},
        "exactly one value must be specified",
    ),
    "33 attributes": (
        {"devices": [{"name": "a", "attributes": {f"a{number}": {"int": 1} for number in range(33)}}]},
        "the total number of attributes and capacities must not exceed 32",
    ),
    "no slices": ({"pool": {"name": "node", "generation": 0, "resourceSliceCount": 0}}, "must be greater than zero"),
    "an effect": (
        {"devices": devices(1, taints=[{"key": "a", "effect": "Never"}])},
        'Unsupported value: "Never": supported values: "NoExecute", "NoSchedule", "None"',
    ),
    "a long driver": ({"driver": "a" * 64}, "spec.driver: Too long: may not be more than 63 bytes"),
}


@pytest.mark.parametrize(("changes", "text"), BAD.values(), ids=BAD)
async def test_a_slice_beyond_the_limits_is_refused_whole(api: Api, changes: Json, text: str) -> None:
    answer = await api("POST", SLICES, resource_slice(**changes))
    assert answer.code == 422
    assert text in answer.body["message"]


async def test_driver_pool_and_node_of_a_slice_never_change(api: Api) -> None:
    made = (await api("POST", SLICES, resource_slice())).body
    for path in (("driver",), ("pool", "name"), ("nodeName",)):
        changed = deepcopy(made)
        inner = changed["spec"]
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = "other"
        answer = await api("PUT", f"{SLICES}/{made['metadata']['name']}", changed)
        assert answer.code == 422
        assert f"spec.{'.'.join(path)}" in answer.body["message"]


async def test_a_claim_is_allocated_in_its_status_and_its_spec_stays(api: Api) -> None:
    claim = {
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
    }
    made = (await api("POST", CLAIMS, claim)).body
    made["status"] = {"reservedFor": [{"resource": "pods", "name": "a", "uid": "u"}]}
    assert "reservedFor" in (await api("PUT", f"{CLAIMS}/one/status", made)).body["message"]
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node", "device": "gpu-0"}
    made["status"]["allocation"] = {"devices": {"results": [result]}}
    assert (await api("PUT", f"{CLAIMS}/one/status", made)).code == 200
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    (row,) = (await api("GET", CLAIMS, accept=accept)).body["rows"]
    assert row["cells"][:2] == ["one", "allocated,reserved"]
    changed = await api.patch(f"{CLAIMS}/one", {"spec": {"devices": {"requests": []}}})
    assert changed.code == 422


@pytest.mark.parametrize(
    "request_",
    [{"name": "gpu"}, {"name": "gpu", "exactly": {"deviceClassName": "a"}, "firstAvailable": [{"name": "b"}]}],
)
async def test_a_request_is_exact_or_a_choice(api: Api, request_: Json) -> None:
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request_]}}}
    answer = await api("POST", CLAIMS, claim)
    assert answer.code == 422


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.model", "compilation failed: ERROR: <input>:1:7: undefined field 'model'"),
        ("1 + 1", "must evaluate to bool or the unknown type, not int"),
        (
            "lists.range(5000).all(a, lists.range(5000).all(b, a + b >= 0))",
            "Forbidden: too complex, exceeds cost limit",
        ),
        ('int("x") == 1', "Internal error: program instantiation failed: type conversion error"),
        ("true || " * 2000 + "true", "Too long: may not be more than 10240 bytes"),
    ],
    ids=["unknown field", "not boolean", "too costly", "constant in error", "too long"],
)
async def test_a_selector_that_can_never_work_is_refused(api: Api, expression: str, message: str) -> None:
    selectors = [{"cel": {"expression": "true"}}, {"cel": {"expression": expression}}]
    exactly = {"deviceClassName": "gpu", "selectors": selectors}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    objects = {
        f"{ROOT}/deviceclasses": ({"selectors": selectors}, "spec.selectors[1]"),
        CLAIMS: (claim, "spec.devices.requests[0].exactly.selectors[1]"),
        f"{ROOT}/namespaces/default/resourceclaimtemplates": (
            {"spec": claim},
            "spec.spec.devices.requests[0].exactly.selectors[1]",
        ),
    }
    for path, (spec, place) in objects.items():
        refused = await api("POST", path, {"metadata": {"name": "gpu"}, "spec": spec})
        assert refused.code == 422, refused.body
        assert f"{place}.cel.expression: " in refused.body["message"]
        assert message in refused.body["message"]


async def test_admin_access_needs_a_labelled_namespace(api: Api) -> None:
    requests = [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]
    requests.append({"name": "b", "exactly": {"deviceClassName": "gpu", "adminAccess": True}})
    claim = {"metadata": {"name": "watch"}, "spec": {"devices": {"requests": requests}}}
    template = {"metadata": {"name": "watch"}, "spec": {"spec": claim["spec"]}}
    kinds = {CLAIMS: claim, CLAIMS.replace("resourceclaims", "resourceclaimtemplates"): template}
    for path, entry in kinds.items():
        refused = await api("POST", path, deepcopy(entry))
        assert refused.code == 422, refused.body
        cause = refused.body["details"]["causes"][0]
        assert (cause["reason"], cause["field"]) == ("FieldValueForbidden", "spec.devices.requests[1].adminAccess")
        assert "requires the `resource.kubernetes.io/admin-access: true` label" in cause["message"]
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert (await api.patch("/api/v1/namespaces/default", label)).code == 200
    assert [(await api("POST", path, deepcopy(entry))).code for path, entry in kinds.items()] == [201, 201]
