"""What the chart makes for resources that are served by claims, and that it makes none of it for others."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.rendered import CASES, Object, helm, objects, one

from plugwright.sdk.driver_names import driver_name

OWN = "plugwright-plugwright"
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def rendered(values: dict[str, Any], tmp_path: Path, *flags: str) -> list[Object]:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path, *flags)
    assert result.returncode == 0, result.stderr
    return [made for made in yaml.safe_load_all(result.stdout) if made]


def refusal(values: dict[str, Any], tmp_path: Path, *flags: str) -> str:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path, *flags)
    assert result.returncode == 1
    return result.stderr


def resource(name: str, serve: object = "dra") -> dict[str, Any]:
    return {"name": name, "mock": {"count": 1}, "serve": serve}


def config(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"config": {"resources": list(resources)}}


def pod_of(made: list[Object]) -> Object:
    (found,) = [each for each in made if each["kind"] == "DaemonSet"]
    pod: Object = found["spec"]["template"]["spec"]
    return pod


def named(made: list[Object], kind: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in made if each["kind"] == kind}


@pytest.mark.parametrize("case", [case for case in CASES if case != "claims"])
def test_without_claims_there_is_no_right_no_token_and_no_class(case: str) -> None:
    made = objects(case)
    assert not {each["kind"] for each in made} & {"DeviceClass", *POLICIES}
    assert OWN not in {each["metadata"]["name"] for each in made if "Cluster" in each["kind"]}
    for each in made:
        if each["kind"] == "DaemonSet":
            assert each["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_a_resource_with_claims_has_a_class_that_takes_its_name_over() -> None:
    assert {name: made["spec"] for name, made in named(objects("claims"), "DeviceClass").items()} == {
        "gpu.nvidia.plugwright.dev": {
            "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.plugwright.dev"'}}],
            "extendedResourceName": "nvidia.com/gpu",
        },
        "tape.example.com": {
            "selectors": [{"cel": {"expression": 'device.driver == "tape.example.com"'}}],
            "extendedResourceName": "example.com/tape",
        },
    }


def test_the_daemon_gets_a_token_its_names_and_the_directories_of_drivers() -> None:
    pod = pod_of(objects("claims"))
    assert pod["automountServiceAccountToken"] is True
    container = pod["containers"][0]
    assert [variable["name"] for variable in container["env"]] == ["NODE_NAME", "POD_UID"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    for name, path in (
        ("plugins-registry", "/var/lib/kubelet/plugins_registry"),
        ("plugins", "/var/lib/kubelet/plugins"),
        ("host-0", "/var/run/cdi"),
    ):
        assert paths[name] == mounts[name]["mountPath"] == path  # the kubelet is told paths as it sees them
        assert not mounts[name].get("readOnly")
    assert container["securityContext"]["privileged"] is False


def test_the_account_may_list_claims_only_where_devices_move(tmp_path: Path) -> None:
    def verbs(made: list[Object]) -> list[str]:
        (rule,) = [rule for rule in named(made, "ClusterRole")[OWN]["rules"] if rule["resources"] == ["resourceclaims"]]
        found: list[str] = rule["verbs"]
        return found

    assert verbs(objects("claims")) == ["get", "list"]
    assert verbs(rendered(config(resource("example.com/tape")), tmp_path)) == ["get"]


def test_no_rule_is_for_everything() -> None:
    for rule in one("claims", "ClusterRole", OWN)["rules"]:
        assert "*" not in str(rule)
        if rule["resources"] == ["resourceclaims/driver"]:
            assert rule["resourceNames"] == ["gpu.nvidia.plugwright.dev", "tape.example.com"]
            assert rule["verbs"] == ["associated-node:patch"]


NAMES = [
    "example.com/tape",
    "example.com/Tape",
    "example.com/tape_x",
    "example.com/tape.x",
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    f"example.com/{'t' * 63}",
    f"example.com/{'t' * 50}",
    f"{'d' * 60}.example.com/tape",
    f"{'d' * 60}.example.com/Tape_x",
]


def test_drivers_have_the_names_that_the_daemon_gives_them(tmp_path: Path) -> None:
    made = rendered(config(*map(resource, NAMES)), tmp_path)
    found = {each["spec"]["extendedResourceName"]: name for name, each in named(made, "DeviceClass").items()}
    assert found == {name: driver_name(name) for name in NAMES}


def test_a_driver_may_be_named_in_the_file(tmp_path: Path) -> None:
    made = rendered(config(resource("example.com/tape", {"api": "dra", "driver": "robot.example.com"})), tmp_path)
    assert list(named(made, "DeviceClass")) == ["robot.example.com"]
    assert '["robot.example.com"]' in str(named(made, "ValidatingAdmissionPolicy"))


def test_drivers_whose_names_the_machine_decides_are_known_by_their_domain(tmp_path: Path) -> None:
    family = {"name": "nvidia.com/mig-{profile}", "nvidia": {}, "serve": "dra"}
    made = rendered({**config(family), "test": {"resources": []}}, tmp_path)
    policy = str(named(made, "ValidatingAdmissionPolicy")[f"{OWN}-slices"])
    assert 'variables.slice.driver.endsWith(".nvidia.plugwright.dev")' in policy
    assert not named(made, "DeviceClass")
    rules = named(made, "ClusterRole")[OWN]["rules"]
    assert ["resourceclaims/driver"] not in [rule["resources"] for rule in rules]


def test_the_policy_keeps_entries_of_other_drivers_and_nodes_as_they_were() -> None:
    spec = named(objects("claims"), "ValidatingAdmissionPolicy")[f"{OWN}-claims"]["spec"]
    last = spec["validations"][-1]
    assert last["message"] == "this account may change only its own node's and drivers' devices of a claim's status"
    own = 'one.pool == variables.tokenNode && (one.driver in ["gpu.nvidia.plugwright.dev","tape.example.com"])'
    added, removed = last["expression"].split(" && variables.before.all")
    assert added == f"variables.after.all(one, {own} || variables.before.exists(other, other == one))"
    assert removed == f"(one, {own} || variables.after.exists(other, other == one))"


def test_each_part_can_be_left_to_others(tmp_path: Path) -> None:
    off = {"deviceClasses": False, "extendedResourceName": False, "admissionPolicies": False}
    made = rendered({**config(resource("example.com/tape")), "dra": off}, tmp_path)
    assert not {each["kind"] for each in made} & {"DeviceClass", *POLICIES}
    made = rendered({**config(resource("example.com/tape")), "dra": {"extendedResourceName": False}}, tmp_path)
    assert "extendedResourceName" not in named(made, "DeviceClass")["tape.example.com"]["spec"]


def test_daemons_without_claims_get_nothing_beside_one_that_has_them(tmp_path: Path) -> None:
    plain = {"config": {"resources": [{"name": "example.com/widget", "mock": {"count": 1}}]}}
    made = rendered({**config(resource("example.com/tape")), "configs": {"plain": plain}}, tmp_path)
    tokens = {name: each["spec"]["template"]["spec"]["automountServiceAccountToken"] for name, each in
              named(made, "DaemonSet").items()}  # fmt: skip
    assert tokens == {"plugwright": True, "plugwright-plain": False}


def test_two_configurations_with_one_resource_share_its_class(tmp_path: Path) -> None:
    pool = {"example.com/pool": "other"}
    other = {"config": {"resources": [resource("example.com/tape", "both")]}, "nodeSelector": pool}
    made = rendered({**config(resource("example.com/tape")), "configs": {"other": other}}, tmp_path)
    assert list(named(made, "DeviceClass")) == ["tape.example.com"]
    assert ["get", "list"] in [rule["verbs"] for rule in named(made, "ClusterRole")[OWN]["rules"]]


def test_a_plugin_of_ones_own_says_how_it_is_served(tmp_path: Path) -> None:
    plugin = {"target": "npu:Npu", "resources": ["example.com/npu"], "serve": "dra"}
    made = rendered({"plugin": plugin}, tmp_path)
    assert list(named(made, "DeviceClass")) == ["npu.example.com"]
    pod = pod_of(made)
    assert pod["automountServiceAccountToken"] is True
    assert "/var/run/cdi" in str(pod["volumes"])
    assert pod["containers"][0]["args"][:3] == ["run", "npu:Npu", "--serve=dra"]


def test_helm_test_takes_a_device_by_a_claim(tmp_path: Path) -> None:
    made = objects("claims")
    (template,) = named(made, "ResourceClaimTemplate").values()
    asked = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert asked == {"deviceClassName": "tape.example.com"}
    first, second, third = named(made, "Pod").values()
    assert first["spec"]["containers"][0]["resources"] == {"claims": [{"name": "device"}]}
    assert first["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    for pod, name in ((second, "nvidia.com/gpu"), (third, "example.com/widget")):
        assert pod["spec"]["containers"][0]["resources"] == {"limits": {name: 1}}


TWO = {
    "config": {"resources": [resource("example.com/tape", {"api": "dra", "driver": "robot.example.com"})]},
    "nodeSelector": {"example.com/pool": "two"},
}
REFUSED: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    (
        config(resource("a.b/c")),
        ("--kube-version=1.33.1",),
        "need Kubernetes 1.34 or newer, and the API server is v1.33.1",
    ),
    ({**config(resource("a.b/c")), "serviceAccount": {"create": False}}, (), "need a service account of their own"),
    ({"plugin": {"target": "npu:Npu", "serve": "dra"}}, (), "plugin.serve: dra needs plugin.resources"),
    (
        {**config(resource("example.com/tape")), "configs": {"two": TWO}},
        (),
        "example.com/tape must have one driver, got tape.example.com and robot.example.com",
    ),
    (
        {**config(resource("example.com/robot")), "configs": {"two": TWO}},
        (),
        "driver robot.example.com must be of one resource, got example.com/robot and example.com/tape",
    ),
]


@pytest.mark.parametrize(("values", "flags", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_claims_that_could_not_work_are_refused(
    values: dict[str, Any], flags: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    assert reason in refusal(values, tmp_path, *flags)
