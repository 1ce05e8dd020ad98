"""The least ClusterRole of every command."""

import pytest

from plugwright.extended_resources.report import cluster_role


def allowed(role: dict[str, object]) -> set[tuple[str, str, tuple[str, ...]]]:
    rules = role["rules"]
    assert isinstance(rules, list)
    return {
        (verb, resource, tuple(rule.get("resourceNames", ())))
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


ALWAYS = {("list", "pods", ()), ("list", "deviceclasses", ())}


@pytest.mark.parametrize(
    ("nodes", "patch", "expected"),
    [
        ([], False, {("list", "nodes", ())}),
        (["n1"], False, {("get", "nodes", ("n1",))}),
        (["n2", "n1"], True, {("get", "nodes", ("n1", "n2")), ("patch", "nodes/status", ("n1", "n2"))}),
        ([], True, {("get", "nodes", ()), ("list", "nodes", ()), ("patch", "nodes/status", ())}),
    ],
)
def test_role_has_only_the_verbs_that_the_call_needs(
    nodes: list[str], patch: bool, expected: set[tuple[str, str, tuple[str, ...]]]
) -> None:
    assert allowed(cluster_role("x", nodes, patch)) == expected | ALWAYS


def test_role_is_named_after_the_command() -> None:
    role = cluster_role("remove", [], patch=True)
    assert (role["kind"], role["metadata"]) == ("ClusterRole", {"name": "plugwright-node-remove"})
