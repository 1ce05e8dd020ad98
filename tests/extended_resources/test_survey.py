"""Choosing nodes, listing their resources, finding stale ones."""

from pathlib import Path

import pytest
from tests.extended_resources.imitation import Cluster, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import ConfigError
from plugwright.extended_resources.changes import ChangeOptions, ChangeTarget, NodesClient
from plugwright.extended_resources.resources import Backing, ClusterContext
from plugwright.extended_resources.survey import cluster_context, find_stale, list_resources, nodes_named, targets_named
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.boot import boot_id


def test_nodes_named_returns_all_or_the_named_ones_once(api: NodesClient, cluster: Cluster) -> None:
    cluster.add_node("n0")
    assert [node.name for node in nodes_named(api, [])] == ["n0", "n1"]
    assert [node.name for node in nodes_named(api, ["n1", "n1"])] == ["n1"]
    for name in ("n2", "../pods", "n1/status", "n1?x", ""):
        with pytest.raises(ConfigError, match="there is no node"):
            nodes_named(api, ["n1", name])


def test_list_resources_covers_all_nodes(api: NodesClient, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    cluster.add_node("n2")
    cluster.set("n2", "curl", {"a/b": 1}, {})
    kubelet_of_n1.serve("mock/gpu", 2)
    cluster.pods = [pod("p", "n1", {"mock/gpu": 1}), pod("q", "n3", {"mock/gpu": 1})]
    resources = list_resources(api, api.nodes(), ClusterContext())
    assert [(resource.node, resource.resource, resource.requested) for resource in resources] == [
        ("n1", "mock/gpu", 1),
        ("n2", "a/b", 0),
    ]


def test_find_stale_returns_unserved_resources_among_the_named(
    api: NodesClient, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve("mock/gpu", 2)
    kubelet_of_n1.serve("mock/lost", 0)
    kubelet_of_n1.serve("mock/other", 0)
    nodes = api.nodes()
    options = ChangeOptions(stale=True, named=False)
    assert find_stale(nodes, ClusterContext(), options) == [
        ChangeTarget("n1", "mock/lost"),
        ChangeTarget("n1", "mock/other"),
    ]
    assert find_stale(nodes, ClusterContext(), options, only=["mock/lost", "mock/gpu"]) == [
        ChangeTarget("n1", "mock/lost")
    ]


def test_a_resource_that_the_node_does_not_have_is_an_error(api: NodesClient, cluster: Cluster) -> None:
    cluster.set("n1", "curl", {"Odd.Name/x": 1}, {})
    (node,) = api.nodes()
    assert targets_named(node, ["Odd.Name/x"]) == [ChangeTarget("n1", "Odd.Name/x")]
    for name in ("a/b", "cpu"):
        with pytest.raises(ConfigError, match=f"node n1 has no extended resource '{name}'; it has: Odd.Name/x"):
            targets_named(node, [name])


def test_a_kubelets_directory_belongs_to_the_node_of_this_machine(
    api: NodesClient, cluster: Cluster, root: Path
) -> None:
    (root / "device-plugins").mkdir()
    paths, here = KubeletPaths.under(root), boot_id()
    cluster.add_node("here", boot_id=here)
    kubelet = Kubelet(cluster, "here")
    kubelet.serve("mock/gpu", 2)
    context = cluster_context(api, api.nodes(), paths)
    assert [resource.assessment.backing for resource in list_resources(api, api.nodes(), context())] == [Backing.STALE]
    with pytest.raises(ConfigError, match="none of them is this machine"):
        cluster_context(api, nodes_named(api, ["n1"]), paths)
    cluster.add_node("twin", boot_id=here)
    with pytest.raises(ConfigError, match="here, twin share this machine"):
        cluster_context(api, api.nodes(), paths)
