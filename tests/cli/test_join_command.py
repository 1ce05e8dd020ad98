"""`plugwright join` before it reaches a cluster: flags, files and the rights that it prints."""

from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from plugwright.cli.main import cli


def call(*words: object) -> Result:
    return CliRunner().invoke(cli, ["join", *map(str, words)])


def test_the_context_must_be_named() -> None:
    result = call("--nodes", 2)
    assert result.exit_code == 2
    assert "--context is needed: the cluster to join must be named" in result.output


def test_a_file_and_a_number_of_nodes_exclude_each_other(tmp_path: Path) -> None:
    assert "exclude each other" in call("--context", "a", "--nodes", 2, "-f", tmp_path / "nodes.yaml").output


def test_leaving_needs_the_state_of_the_nodes() -> None:
    assert "--leave needs --state" in call("--context", "a", "--leave").output


def test_the_printed_rights_name_the_nodes_and_are_bound_to_the_account() -> None:
    documents = list(yaml.safe_load_all(call("--nodes", 2, "--print-rbac", "--service-account", "ci/join").output))
    assert [(document["kind"], document["metadata"].get("namespace")) for document in documents] == [
        ("ClusterRole", None),
        ("ClusterRoleBinding", None),
        ("Role", "kube-node-lease"),
        ("RoleBinding", "kube-node-lease"),
        ("Role", "kube-system"),
        ("RoleBinding", "kube-system"),
    ]
    rules = documents[0]["rules"]
    [deleting] = [rule for rule in rules if rule["resources"] == ["nodes"] and "delete" in rule["verbs"]]
    assert deleting["resourceNames"] == ["plugwright-1", "plugwright-2"]
    assert not [rule for rule in rules if "secrets" in rule["resources"] or "*" in rule["verbs"]]
    assert documents[1]["subjects"] == [{"kind": "ServiceAccount", "name": "join", "namespace": "ci"}]


def test_commands_that_run_need_the_right_to_read_what_pods_refer_to() -> None:
    [role, *_] = yaml.safe_load_all(call("--run", "--print-rbac").output)
    assert {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]} in role["rules"]


def test_a_state_without_a_process_has_no_node_to_stop(tmp_path: Path) -> None:
    result = call("stop-node", "gpu-1", "--state", tmp_path)
    assert str(result.exception) == f"no nodes of {tmp_path} are joined now"
