"""Which nodes are meant, and what is stale on them."""

from pathlib import Path

import pytest
from tests.extended_resources.imitation import Cluster, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import ConfigError
from plugwright.extended_resources.changes import Plan, Target
from plugwright.extended_resources.client import Api
from plugwright.extended_resources.kubelet_dir import BOOT_ID
from plugwright.extended_resources.resources import Backing, World
from plugwright.extended_resources.survey import find_stale, nodes_named, survey, targets_named, worldly
from plugwright.protocol.paths import KubeletPaths


def test_all_nodes_or_those_named_each_once(api: Api, cluster: Cluster) -> None:
    cluster.add_node("n0")
    assert [node.name for node in nodes_named(api, [])] == ["n0", "n1"]
    assert [node.name for node in nodes_named(api, ["n1", "n1"])] == ["n1"]
    for name in ("n2", "../pods", "n1/status", "n1?x", ""):
        with pytest.raises(ConfigError, match="there is no node"):
            nodes_named(api, ["n1", name])


def test_a_survey_has_the_rows_of_all_nodes(api: Api, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    cluster.add_node("n2")
    cluster.set("n2", "curl", {"a/b": 1}, {})
    kubelet_of_n1.serve("mock/gpu", 2)
    cluster.pods = [pod("p", "n1", {"mock/gpu": 1}), pod("q", "n3", {"mock/gpu": 1})]
    found = survey(api, api.nodes(), World())
    assert [(row.node, row.resource, row.requested) for row in found] == [("n1", "mock/gpu", 1), ("n2", "a/b", 0)]


def test_stale_is_what_nobody_serves_among_what_is_named(api: Api, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    kubelet_of_n1.serve("mock/gpu", 2)
    kubelet_of_n1.serve("mock/lost", 0)
    kubelet_of_n1.serve("mock/other", 0)
    nodes = api.nodes()
    plan = Plan(stale=True, named=False)
    assert find_stale(nodes, World(), plan) == [Target("n1", "mock/lost"), Target("n1", "mock/other")]
    assert find_stale(nodes, World(), plan, only=["mock/lost", "mock/gpu"]) == [Target("n1", "mock/lost")]


def test_a_resource_that_the_node_does_not_have_is_an_error(api: Api, cluster: Cluster) -> None:
    cluster.set("n1", "curl", {"Odd.Name/x": 1}, {})
    (node,) = api.nodes()
    assert targets_named(node, ["Odd.Name/x"]) == [Target("n1", "Odd.Name/x")]
    for name in ("a/b", "cpu"):
        with pytest.raises(ConfigError, match=f"node n1 has no extended resource '{name}'; it has: Odd.Name/x"):
            targets_named(node, [name])


def test_a_kubelets_directory_belongs_to_the_node_of_this_machine(api: Api, cluster: Cluster, root: Path) -> None:
    (root / "device-plugins").mkdir()
    paths, here = KubeletPaths.under(root), BOOT_ID.read_text().strip()
    cluster.add_node("here", boot_id=here)
    kubelet = Kubelet(cluster, "here")
    kubelet.serve("mock/gpu", 2)
    world = worldly(api, api.nodes(), paths)
    assert [row.verdict.backing for row in survey(api, api.nodes(), world())] == [Backing.STALE]
    with pytest.raises(ConfigError, match="none of those asked for"):
        worldly(api, nodes_named(api, ["n1"]), paths)
    cluster.add_node("twin", boot_id=here)
    with pytest.raises(ConfigError, match="here, twin share this machine"):
        worldly(api, api.nodes(), paths)
