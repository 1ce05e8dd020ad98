"""`lint` on small worlds: each mistake has its code and its field."""

from typing import Any

import pytest
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, published, selected

from plugwright.explain.claim_lint import lint_objects
from plugwright.explain.world import World

SLICES = (published(device("a", numa=0), device("b", numa=1)), published(device("c"), on="n2"))
WORLD = World((node("n1"), node("n2")), (), SLICES, (CLASS,))
NUMA = f'device.attributes["{DRIVER}"].numa'
SELECTOR = "spec.devices.requests[0].exactly.selectors[0]"

CASES: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "fails on a device without the attribute": (
        {"selectors": selected(f"{NUMA} == 0")},
        ("error", "selector-fails"),
        "1 of 3 devices",
    ),
    "does not compile": (
        {"selectors": selected("device.driver ==")},
        ("error", "selector-invalid"),
        "does not compile",
    ),
    "matches nothing": (
        {"selectors": selected('device.driver == "other"')},
        ("warning", "selector-matches-nothing"),
        "matches none of 3 devices",
    ),
    "reads an attribute that no driver publishes": (
        {"selectors": selected(f'device.attributes["{DRIVER}"].?model.orValue("") == "h"')},
        ("warning", "unpublished"),
        f"no driver publishes the attribute {DRIVER}/model",
    ),
    "requests a capacity that no driver publishes": (
        {"capacity": {"requests": {"memroy": "20Gi"}}},
        ("error", "unpublished"),
        "no driver publishes the capacity memroy",
    ),
    "names a missing class": ({"deviceClassName": "other"}, ("error", "class-missing"), "DeviceClass other"),
    "asks for more devices than any node has": ({"count": 3}, ("error", "never-satisfied"), "at most 2 of 3"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_claim_with_a_mistake_has_a_finding(name: str) -> None:
    exactly, expected, words = CASES[name]
    entry = {"kind": "ResourceClaim", **claim("c", **exactly)}
    first = lint_objects(WORLD, [entry]).findings[0]
    assert (first.level, first.code) == expected
    assert words in first.text
    assert first.path.startswith("spec.devices")
    if "selectors" in exactly:
        assert first.path == SELECTOR


def test_a_constraint_on_an_unpublished_attribute_is_an_error() -> None:
    constraints = [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/rack"}]
    entry = {"kind": "ResourceClaim", **claim("c", constraints=constraints)}
    [finding] = lint_objects(WORLD, [entry]).findings
    assert (finding.code, finding.path) == ("unpublished", "spec.devices.constraints[0]")


def test_held_and_tainted_devices_are_no_mistake_of_a_claim() -> None:
    world = World((node("n1"),), (), (published(device("a", "xid")),), (CLASS,), (claim("h", "a"),))
    report = lint_objects(world, [{"kind": "ResourceClaim", **claim("c")}])
    assert (report.checked, report.findings) == (1, ())


def test_templates_and_classes_are_checked() -> None:
    template = {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": claim("x", count=9)["spec"]},
    }
    broken = {"kind": "DeviceClass", "metadata": {"name": "k"}, "spec": {"selectors": selected(f"{NUMA} == 0")}}
    found = [(one.name, one.code) for one in lint_objects(WORLD, [template, broken]).findings]
    assert found == [("t", "never-satisfied"), ("k", "selector-fails")]


def test_a_satisfiable_template_and_a_claim_that_is_being_deleted_are_no_mistakes() -> None:
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": claim("x")["spec"]}}
    leaving = {"kind": "ResourceClaim", **claim("c")}
    leaving["metadata"] = {**leaving["metadata"], "deletionTimestamp": "2026-11-19T20:00:00Z"}
    report = lint_objects(WORLD, [template, leaving])
    assert (report.checked, report.findings) == (2, ())


def test_a_claim_of_a_file_that_an_api_server_would_reject_has_a_finding() -> None:
    twice = {"kind": "ResourceClaim", **claim("c")}
    twice["spec"]["devices"]["requests"] *= 2
    found = lint_objects(WORLD, [twice]).findings
    assert [(entry.code, entry.path) for entry in found] == [("invalid", "spec.devices.requests[1]")]
    twice["metadata"]["uid"] = "u"  # an API server has accepted it
    assert not any(entry.code == "invalid" for entry in lint_objects(WORLD, [twice]).findings)
