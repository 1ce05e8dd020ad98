"""The nodes file of `plugwright join`: what it makes, and how it refuses."""

import pytest

from plugwright.config.nodes_file import read_nodes
from plugwright.errors import ConfigError

FULL = """\
nodes:
  - name: gpu
    count: 2
    cpu: 64
    memory: 512Gi
    numa: 2
    labels: {pool: gpu}
    taints: [{key: pool, value: gpu, effect: NoSchedule}]
    kubelet: {version: "1.35", policy: single-numa-node, scope: pod}
    resources:
      - name: mock/gpu
        mock: {count: 8}
  - name: plain
"""


def test_a_group_is_as_many_nodes_as_it_counts() -> None:
    plans = read_nodes("nodes.yaml", FULL).plans
    assert [plan.name for plan in plans] == ["gpu-1", "gpu-2", "plain-1"]
    first, plain = plans[0], plans[2]
    assert (first.shape.cpu, first.shape.memory, first.kubelet.numa) == ("64", "512Gi", 2)
    assert first.shape.taints == ({"key": "pool", "value": "gpu", "effect": "NoSchedule"},)
    assert (first.version, first.kubelet.policy, first.kubelet.scope) == ("1.35", "single-numa-node", "pod")
    assert [plugin.resource for plugin in first.plugins("gpu-1")] == ["mock/gpu"]
    assert list(plain.plugins("plain-1")) == []


def test_each_node_has_plugins_of_its_own() -> None:
    [first, second, _] = read_nodes("nodes.yaml", FULL).plans
    [one], [other] = first.plugins("gpu-1"), second.plugins("gpu-2")
    assert one is not other


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nodes:\n- name: gpu\n  cout: 3\n", "nodes.yaml:3: nodes[0]: unknown key 'cout': did you mean 'count'?"),
        ("node: []\n", "nodes.yaml:1: unknown key 'node': did you mean 'nodes'?"),
        ("nodes: []\n", "nodes.yaml:1: nodes: expected a list of length >= 1"),
        ("nodes:\n- name: Gpu\n", "nodes.yaml:2: nodes[0].name: "),
        ("nodes:\n- name: a\n  cpu: many\n", "nodes.yaml:3: nodes[0].cpu: must be a quantity such as 16 or 64Gi"),
        (
            "nodes:\n- name: a\n  kubelet: {version: '1.99'}\n",
            "nodes.yaml:3: nodes[0].kubelet: kubelet version must be 1.26 to 1.37, or 'legacy', got 1.99",
        ),
        (
            "nodes:\n- name: a\n  kubelet: {policy: strict}\n",
            "nodes.yaml:3: nodes[0].kubelet.policy: must be one of none, best-effort, restricted, single-numa-node",
        ),
        (
            "nodes:\n- name: a\n  resources:\n  - name: mock/gpu\n    mock: {cout: 2}\n",
            "nodes.yaml:5: nodes[0].resources[0].mock: unknown key 'cout': did you mean 'count'?",
        ),
        ("nodes:\n- name: a\n- name: a\n", "nodes.yaml:3: nodes[1].name: a is a group already in line 2"),
        (
            "nodes:\n- name: a\n  taints: [{key: b, effect: Never}]\n",
            "nodes.yaml:3: nodes[0].taints[0].effect: must be one of NoSchedule, PreferNoSchedule, NoExecute",
        ),
        (
            "nodes:\n- name: a\n  labels: {plugwright.dev/joined-by: me}\n",
            "nodes.yaml:3: nodes[0].labels: plugwright.dev/joined-by: is set by plugwright itself",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_nodes("nodes.yaml", text)
    assert str(raised.value).startswith(error)
