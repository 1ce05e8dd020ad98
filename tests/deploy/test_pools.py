"""Per-pool configurations of one release: exclusive by construction, and refused where the chart sees an overlap."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.rendered import CASES, ROOT, Object, helm, objects

TAPE = {"resources": [{"name": "example.com/tape", "mock": {"count": 1}}]}
Selector = dict[str, str]


def rendered(values: dict[str, Any], tmp_path: Path) -> list[Object]:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path)
    assert result.returncode == 0, result.stderr
    return [each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "DaemonSet"]


def refusal(values: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path)
    assert result.returncode == 1
    return result.stderr


def matches(pod: Object, labels: Selector) -> bool:
    """Whether the scheduler may place the daemon on a node with these labels."""
    if any(labels.get(key) != value for key, value in pod.get("nodeSelector", {}).items()):
        return False
    node = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
    return any(all(_meets(one, labels) for one in term.get("matchExpressions", [])) for term in terms)


def _meets(expression: Object, labels: Selector) -> bool:
    value = labels.get(expression["key"])
    if expression["operator"] == "NotIn":
        return value not in expression["values"]
    assert expression["operator"] == "In"
    return value in expression["values"]


def daemons_on(made: list[Object], labels: Selector) -> list[str]:
    labels = {"kubernetes.io/os": "linux", **labels}
    return [each["metadata"]["name"] for each in made if matches(each["spec"]["template"]["spec"], labels)]


def pool(**labels: str) -> Object:
    return {"config": TAPE, "nodeSelector": labels}


def test_each_node_has_one_configuration(tmp_path: Path) -> None:
    made = rendered(
        {"config": TAPE, "configs": {"big": pool(size="big"), "canary": pool(size="small", canary="true")}}, tmp_path
    )
    assert daemons_on(made, {}) == ["plugwright"]
    assert daemons_on(made, {"size": "big"}) == ["plugwright-big"]
    assert daemons_on(made, {"size": "big", "canary": "true"}) == ["plugwright-big"]
    assert daemons_on(made, {"size": "small", "canary": "true"}) == ["plugwright-canary"]
    assert daemons_on(made, {"size": "small"}) == ["plugwright"]
    assert daemons_on(made, {"canary": "true"}) == ["plugwright"]


def test_an_affinity_of_the_values_holds_beside_the_exclusion(tmp_path: Path) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    made = rendered(
        {"config": TAPE, "affinity": affinity, "configs": {"big": {**pool(size="big"), "affinity": {}}}}, tmp_path
    )
    assert daemons_on(made, {"zone": "a"}) == daemons_on(made, {"zone": "b"}) == ["plugwright"]
    assert daemons_on(made, {"zone": "c"}) == []
    assert daemons_on(made, {"zone": "a", "size": "big"}) == ["plugwright-big"]


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"big": {"config": TAPE}}, "configs.big serves example.com/tape as config does"),
        ({"big": pool(size="big"), "new": pool(canary="true")}, "configs.big and configs.new may run on one node"),
        ({"big": pool(size="big"), "new": pool(size="big")}, "configs.big and configs.new may run on one node"),
    ],
)
def test_pools_that_share_nodes_and_a_resource_are_refused(configs: Object, said: str, tmp_path: Path) -> None:
    assert said in refusal({"config": TAPE, "configs": configs}, tmp_path)


def test_other_resources_may_be_served_on_the_same_nodes(tmp_path: Path) -> None:
    other = {"resources": [{"name": "example.com/disk", "mock": {"count": 1}}]}
    made = rendered({"config": TAPE, "configs": {"disks": {"config": other}}}, tmp_path)
    assert daemons_on(made, {}) == ["plugwright", "plugwright-disks"]


@pytest.mark.parametrize("case", CASES)
def test_each_daemon_has_its_release_and_the_directories_of_claims(case: str) -> None:
    """Also without claims: those of an earlier configuration may hold devices."""
    releases = set()
    daemons = [each for each in objects(case) if each["kind"] == "DaemonSet" and "-mps" not in each["metadata"]["name"]]
    for each in daemons:
        pod = each["spec"]["template"]["spec"]
        container = pod["containers"][0]
        releases |= {word for word in container["args"] if word.startswith("--release=plugwright/plugwright")}
        assert "--node-dir=/var/lib/plugwright-node" in container["args"]
        assert {"NODE_NAME", "POD_UID"} <= {variable["name"] for variable in container["env"]}
        mounted = {
            mount["mountPath"].rpartition("/")[2] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }
        assert {"plugins", "plugins_registry", "cdi", "plugwright-node"} <= mounted
    assert len(releases) == len(daemons)


def test_the_canary_of_the_documentation_takes_over_exactly_the_labelled_nodes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text().partition("### A configuration on a few nodes first")[2]
    canary = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    (label,) = re.findall(r"kubectl label node \S+ (\S+)=canary$", page, re.MULTILINE)
    before = rendered({"config": TAPE}, tmp_path)
    made = rendered({"config": TAPE, **canary}, tmp_path)
    assert daemons_on(made, {}) == daemons_on(before, {}) == ["plugwright"]
    assert daemons_on(made, {label: "canary"}) == ["plugwright-canary"]
    assert f"daemonset/{daemons_on(made, {label: 'canary'})[0]}" in page
    old, new = (each["spec"]["template"]["spec"]["volumes"] for each in made)
    assert [volume for volume in old if volume["name"] == "node"] == [
        volume for volume in new if volume["name"] == "node"
    ]
