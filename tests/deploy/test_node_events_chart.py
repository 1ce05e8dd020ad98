"""What the chart makes for Events and Node conditions: nothing by default, and then little."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.rendered import CASES, Object, helm, objects

from plugwright.node_events import device_changes, node_conditions

MOCK = {"mock": {"enabled": True}, "events": {"enabled": True}}
NAME, CLUSTER_NAME = "plugwright-node-events", "plugwright-plugwright-node-events"


def rendered(values: dict[str, Any], tmp_path: Path) -> list[Object]:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path)
    assert result.returncode == 0, result.stderr
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def one(made: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in made if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod(made: list[Object], name: str) -> Object:
    found: Object = one(made, "DaemonSet", name)["spec"]["template"]["spec"]
    return found


def run_directory(spec: Object) -> str:
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "run"]
    return str(volume["hostPath"]["path"])


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_it_is_there_by_default(case: str) -> None:
    assert not [each for each in objects(case) if "node-events" in each["metadata"]["name"]]


def test_the_daemon_stays_without_a_token_and_shares_its_socket_with_its_own_reporter(tmp_path: Path) -> None:
    big = {"config": {"resources": [{"name": "a.b/c", "mock": {}}]}, "nodeSelector": {"size": "big"}}
    made = rendered({**MOCK, "configs": {"big": big}}, tmp_path)
    for name in ("plugwright", "plugwright-big"):
        daemon, reporter = pod(made, name), pod(made, f"{name}-node-events")
        assert daemon["automountServiceAccountToken"] is False
        assert (reporter["automountServiceAccountToken"], reporter["serviceAccountName"]) == (True, NAME)
        assert run_directory(daemon) == run_directory(reporter)
        for part in ("nodeSelector", "affinity", "tolerations"):
            assert daemon.get(part) == reporter.get(part)
    assert run_directory(pod(made, "plugwright")) == "/run/plugwright/plugwright-plugwright"
    assert run_directory(pod(made, "plugwright-big")) == "/run/plugwright/plugwright-plugwright/big"


def test_the_reporter_has_no_capability_and_sees_nothing_of_the_node_but_the_socket(tmp_path: Path) -> None:
    spec = pod(rendered(MOCK, tmp_path), NAME)
    [container] = spec["containers"]
    assert container["name"] != "plugwright"  # by which commands find the daemon's pod
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["volumeMounts"] == [{"name": "run", "mountPath": "/run/plugwright", "readOnly": True}]
    assert "hostPID" not in spec
    assert "hostNetwork" not in spec


def test_its_rights_are_those_of_events_and_conditions(tmp_path: Path) -> None:
    made = rendered(MOCK, tmp_path)
    rules = one(made, "ClusterRole", CLUSTER_NAME)["rules"]
    assert {rule["resources"][0]: rule["verbs"] for rule in rules} == {
        "nodes": ["get"],
        "nodes/status": ["patch"],
        "events": ["create", "patch"],
    }
    [subject] = one(made, "ClusterRoleBinding", CLUSTER_NAME)["subjects"]
    assert (subject["name"], subject["namespace"]) == (NAME, "plugwright")


def test_the_policies_name_the_reasons_and_the_types_that_the_program_writes(tmp_path: Path) -> None:
    made = rendered(MOCK, tmp_path)
    user = 'request.userInfo.username == "system:serviceaccount:plugwright:plugwright-node-events"'
    for part in ("conditions", "events"):
        policy = one(made, "ValidatingAdmissionPolicy", f"{CLUSTER_NAME}-{part}")["spec"]
        assert [each["expression"] for each in policy["matchConditions"]] == [user]
        assert policy["failurePolicy"] == "Fail"
        binding = one(made, "ValidatingAdmissionPolicyBinding", f"{CLUSTER_NAME}-{part}")["spec"]
        assert binding == {"policyName": f"{CLUSTER_NAME}-{part}", "validationActions": ["Deny"]}
    events = json.dumps(one(made, "ValidatingAdmissionPolicy", f"{CLUSTER_NAME}-events"))
    assert json.dumps(json.dumps(sorted(device_changes.REASONS)))[1:-1] in events
    conditions = json.dumps(one(made, "ValidatingAdmissionPolicy", f"{CLUSTER_NAME}-conditions"))
    assert conditions.count(f'startsWith(\\"{node_conditions.PREFIX}\\")') == 2


def test_a_network_policy_lets_it_reach_the_api_server_alone(tmp_path: Path) -> None:
    made = rendered({**MOCK, "networkPolicy": {"enabled": True, "egress": [{"to": []}]}}, tmp_path)
    policy = one(made, "NetworkPolicy", f"{NAME}-egress")["spec"]
    [labels] = policy["podSelector"].values()
    template = one(made, "DaemonSet", NAME)["spec"]["template"]["metadata"]["labels"]
    assert labels.items() <= template.items()
    assert labels["app.kubernetes.io/component"] == "node-events"
    assert [list(rule) for rule in policy["egress"]] == [["ports"]]


def test_after_an_uninstall_the_conditions_are_removed(tmp_path: Path) -> None:
    cron_job = one(rendered(MOCK, tmp_path), "CronJob", "plugwright-cleanup")
    spec = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [clearing] = spec["initContainers"]
    assert clearing["args"] == ["node-events", "--clear", "--all-nodes", "--release=plugwright/plugwright"]


def test_it_cannot_be_with_two_daemons_of_a_node(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({**MOCK, "updateStrategy": {"overlap": True}}))
    result = helm("template", "-f", path, "--kube-version=1.37.0")
    assert result.returncode == 1
    assert "no events: two daemons of a node would meet there" in result.stderr
