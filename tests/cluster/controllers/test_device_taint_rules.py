"""DeviceTaintRules: taints that an administrator puts on devices. They keep claims away and evict pods."""

from functools import partial
from typing import Any

import httpx2
import pytest
from starlette.types import ASGIApp
from tests.cluster.claims import claim, create_claim, create_pod, devices_of, publish, waits, with_driver
from tests.cluster.embedding import Lab, embedded

from plugwright.allocator import rule_selects, with_rule_taints
from plugwright.apiserver.kinds import DEVICE_TAINT_RULES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object
from plugwright.errors import StatusError

TAINT = {"key": "example.com/service", "effect": "NoSchedule"}


def path(name: str = "rule") -> ResourcePath:
    return ResourcePath(DEVICE_TAINT_RULES, "", name)


def create(lab: Lab, effect: str = "NoSchedule", **selector: str) -> Object:
    spec = {"deviceSelector": selector, "taint": {**TAINT, "effect": effect}}
    return lab.writer.create(path(), {"metadata": {"name": "rule"}, "spec": spec}, "test")


async def test_a_rule_keeps_claims_away_from_its_devices_until_it_is_deleted() -> None:
    async with embedded(release="1.37.0") as lab, with_driver(lab):
        publish(lab, devices=[{"name": "gpu-0"}, {"name": "gpu-1"}])
        create(lab, device="gpu-0")
        for name in ("one", "two"):
            create_claim(lab, name)
            create_pod(lab, name, resourceClaimName=name)
        await lab.phase("one")
        assert devices_of(lab, "one") == ["gpu-1"]
        await waits(lab, "two", "1 cannot allocate all claims")
        await lab.cluster.until(lambda: any("1 device tainted" in text for _, text in lab.events("two")))
        lab.writer.delete(path(), DeleteOptions())
        await lab.phase("two")
        assert devices_of(lab, "two") == ["gpu-0"]


def selecting(device: str, rule: Object) -> Object:
    return {**rule, "spec": {**rule["spec"], "deviceSelector": {"device": device}}}


async def test_a_rule_with_noexecute_evicts_the_pods_of_its_devices() -> None:
    async with embedded(release="1.37.0") as lab, with_driver(lab):
        publish(lab, devices=[{"name": "gpu-0"}, {"name": "gpu-1"}, {"name": "gpu-2"}])
        tolerations = [{"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute"}]
        create_claim(lab, "evicted")
        create_claim(lab, "tolerated", tolerations=tolerations)
        create_claim(lab, "other")
        for name in ("evicted", "tolerated", "other"):
            create_pod(lab, name, resourceClaimName=name)
            await lab.phase(name)
        created = create(lab, "None")
        assert created["spec"]["taint"]["timeAdded"]

        def evicting(rule: Object) -> Object:
            selector = {"driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}
            taint = {**rule["spec"]["taint"], "effect": "NoExecute"}
            return {**rule, "spec": {"deviceSelector": selector, "taint": taint}}

        changed = lab.writer.change(path(), evicting, "test")
        assert changed["metadata"]["generation"] == 2
        await lab.gone("evicted")
        for device in ("gpu-1", "gpu-2"):
            lab.writer.change(path(), partial(selecting, device), "test")
        await lab.gone("other")
        assert lab.status("tolerated")["phase"] == "Running"
        assert devices_of(lab, "tolerated") == ["gpu-1"]
        await lab.cluster.until(lambda: (claim(lab, "other") or {}).get("status") == {})


@pytest.mark.parametrize(("release", "code"), [("1.36.4", 404), ("1.37.0", 200)])
async def test_rules_are_served_from_1_37_on(release: str, code: int) -> None:
    async with embedded(release=release) as lab:
        root = "/apis/resource.k8s.io/v1"
        listed = await _get(lab.cluster.application, lab.cluster.token, root)
        assert ("devicetaintrules" in listed.text) == (code == 200)
        answer = await _get(lab.cluster.application, lab.cluster.token, f"{root}/devicetaintrules")
        assert answer.status_code == code
        schema = await _get(lab.cluster.application, lab.cluster.token, f"/openapi/v3{root}")
        assert ("DeviceTaintRule" in schema.text) == (code == 200)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"taint": {"key": "a"}}, "spec.taint.effect: Required value"),
        ({"taint": {"key": "a b", "effect": "NoExecute"}}, "spec.taint.key: Invalid value"),
        ({"taint": {"key": "a", "effect": "Never"}}, 'spec.taint.effect: Unsupported value: "Never"'),
        ({"taint": TAINT, "deviceSelector": {"driver": "A_B"}}, "spec.deviceSelector.driver: Invalid value"),
        ({"taint": TAINT, "deviceSelector": {"pool": "UP"}}, "spec.deviceSelector.pool: Invalid value"),
        ({"taint": TAINT, "deviceSelector": {"device": "a.b"}}, "spec.deviceSelector.device: Invalid value"),
    ],
)
async def test_an_invalid_rule_is_refused(spec: dict[str, Any], message: str) -> None:
    async with embedded(release="1.37.0") as lab:
        with pytest.raises(StatusError, match=message.replace("(", r"\(")):
            lab.writer.create(path(), {"metadata": {"name": "rule"}, "spec": spec}, "test")


def test_a_rule_without_a_selector_selects_nothing_and_an_empty_one_everything() -> None:
    device = ("gpu.example.com", "node-1", "gpu-0")
    assert not rule_selects({"spec": {"taint": TAINT}}, device)
    assert rule_selects({"spec": {"taint": TAINT, "deviceSelector": {}}}, device)
    assert not rule_selects({"spec": {"taint": TAINT, "deviceSelector": {"pool": "node-2"}}}, device)
    spec = {"driver": device[0], "pool": {"name": device[1]}, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    rule = {"spec": {"taint": TAINT, "deviceSelector": {"device": "gpu-1"}}}
    tainted = with_rule_taints({"spec": spec}, [rule])
    assert tainted["spec"]["devices"] == [{"name": "gpu-0"}, {"name": "gpu-1", "taints": [TAINT]}]
    assert spec["devices"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]


async def _get(application: ASGIApp, token: str, url: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=application)
    async with httpx2.AsyncClient(transport=transport, base_url="https://cluster") as client:
        return await client.get(url, headers={"authorization": f"Bearer {token}"})
