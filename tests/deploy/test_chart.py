"""The Helm chart: what it renders, what it refuses, and that nothing in it has become old."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest
import yaml
from tests.deploy.rendered import CASES, CHART, GOLDEN, ROOT, Object, helm, objects, one

from plugwright.cli.main import cli
from plugwright.extended_resources.report import cluster_role
from plugwright.kube.remote_daemon import report_port
from plugwright.version import __version__

HOOK = "helm.sh/hook"


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The schema's own program, which knows what the schema knows without Helm."""
    script = ROOT / "deploy" / "helm" / "generate.py"
    command = [sys.executable, str(script), "--check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def pods(case: str, component: str = "daemon") -> list[Object]:
    return [each["spec"]["template"]["spec"] for each in daemon_sets(case, component)]


def daemon_sets(case: str, component: str = "daemon") -> list[Object]:
    label = "app.kubernetes.io/component"
    sets = [each for each in objects(case) if each["kind"] == "DaemonSet"]
    return [each for each in sets if each["metadata"]["labels"][label].startswith(component)]


def flags_of(*command: str) -> set[str]:
    found: click.Command = cli
    context = cli.make_context("plugwright", [*command, "--help"], resilient_parsing=True)
    for name in command:
        assert isinstance(found, click.Group)
        inner = found.get_command(context, name)
        assert inner is not None
        found = inner
    return {flag for parameter in found.params for flag in parameter.opts}


def test_the_schema_is_made_from_the_types_of_today_and_fits_the_default_values() -> None:
    result = check()
    assert (result.returncode, result.stderr) == (0, "")


def test_the_dashboard_is_the_one_that_the_code_makes() -> None:
    script = ROOT / "deploy" / "helm" / "dashboard.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("case", CASES)
def test_the_values_of_every_case_fit_the_schema(case: str) -> None:
    result = check("-f", GOLDEN / f"{case}.values.yaml")
    assert (result.returncode, result.stderr) == (0, "")


WRONG = {
    "mock: {cuont: 3}": "unknown field `cuont`",
    "config: {resources: [{name: a/b, mock: {count: many}}]}": "`$.config.resources[0].mock.count`",
    "kubelet: {dir: var/lib/kubelet}": "`$.kubelet.dir`",
    "security: {seccompProfile: None}": "`$.security.seccompProfile`",
    "configs: {Big: {config: {resources: []}}}": "key` in `$.configs`",
}


@pytest.mark.parametrize("values", WRONG)
def test_a_wrong_value_is_refused(values: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(values)
    result = check("-f", path)
    assert result.returncode == 1
    assert WRONG[values] in result.stderr


@pytest.mark.parametrize("values", WRONG)
def test_helm_refuses_a_wrong_value_too(values: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(values)
    result = helm("template", "-f", path, "--set", "mock.enabled=true")
    assert result.returncode == 1
    assert "values don't meet the specifications of the schema" in result.stderr


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("case", CASES)
def test_helm_renders_what_is_committed(case: str) -> None:
    """After a change on purpose: PLUGWRIGHT_GOLDEN=write make test ARGS=tests/deploy"""
    result = helm("template", "-f", GOLDEN / f"{case}.values.yaml")
    assert result.returncode == 0, result.stderr
    if os.environ.get("PLUGWRIGHT_GOLDEN") == "write":
        (GOLDEN / f"{case}.yaml").write_text(result.stdout)
    assert result.stdout == (GOLDEN / f"{case}.yaml").read_text()


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_about(case: str) -> None:
    result = helm("lint", "--strict", "-f", GOLDEN / f"{case}.values.yaml")
    assert result.returncode == 0, result.stdout


def test_serving_nothing_is_refused_in_plain_words() -> None:
    result = helm("template")
    assert result.returncode == 1
    assert "nothing to serve: set config.resources, configs, mock.enabled=true or plugin.target" in result.stderr


@pytest.mark.parametrize("case", ["mock", "least"])
def test_the_daemon_has_no_more_than_it_needs(case: str) -> None:
    (pod,) = pods(case)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert "memory" in container["resources"]["limits"]


def test_it_sees_only_the_directories_it_works_in() -> None:
    (pod,) = pods("mock")
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    kubelet = Path("/var/lib/kubelet")
    assert paths == [
        *(str(kubelet / name) for name in ("device-plugins", "plugins_registry", "plugins")),
        *("/var/run/cdi", str(kubelet / "pod-resources")),
        *("/var/lib/plugwright", "/var/lib/plugwright"),  # of the release, and of the node
    ]
    writable = [mount["name"] for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["device-plugins", "plugins-registry", "plugins", "cdi", "state", "node", "run"]


@pytest.mark.parametrize("case", CASES)
def test_there_are_never_two_daemons_on_a_node(case: str) -> None:
    for each in daemon_sets(case):
        assert each["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


@pytest.mark.parametrize("case", CASES)
def test_no_probe_depends_on_the_pod_network(case: str) -> None:
    for pod in [*pods(case), *pods(case, "mps")]:
        (container,) = pod["containers"]
        probes = [container[key] for key in container if key.endswith("Probe")]
        assert all("exec" in probe for probe in probes)
        listens = any(flag.startswith("--listen") for flag in container["args"])
        assert listens == (case == "everything")  # nothing listens but for the metrics


def test_two_configurations_share_no_directory_but_the_kubelets() -> None:
    first, second = (
        {volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] in ("state", "run")}
        for pod in pods("everything")
    )
    assert first == {"/var/lib/plugwright", "/run/plugwright"}
    assert second == {"/var/lib/plugwright/big", "/run/plugwright/big"}


@pytest.mark.parametrize("case", CASES)
def test_every_flag_of_the_daemon_exists(case: str) -> None:
    for pod in pods(case):
        first, *flags = pod["containers"][0]["args"]
        assert first == "run"
        assert {flag.partition("=")[0] for flag in flags} <= flags_of("run")


@pytest.mark.parametrize("case", CASES)
def test_a_changed_configuration_restarts_nothing(case: str) -> None:
    """The pods' template has no trace of it: no checksum, no name that changes."""
    for each in objects(case):
        if each["kind"] == "DaemonSet":
            assert "checksum" not in str(each["spec"]["template"])
            (volume,) = [each for each in each["spec"]["template"]["spec"]["volumes"] if each["name"] == "config"]
            assert "subPath" not in str(each)
            assert volume["configMap"]["name"].startswith("plugwright")


def test_only_an_uninstall_cleans_up_and_helm_waits_for_none_of_it() -> None:
    hooks = [each for each in objects("mock") if each["metadata"].get("annotations", {}).get(HOOK, "test") != "test"]
    hooks = [each for each in hooks if each["metadata"]["labels"]["app.kubernetes.io/component"] != "check"]
    assert {each["metadata"]["annotations"][HOOK] for each in hooks} == {"post-delete"}
    kinds = [each["kind"] for each in hooks]
    assert sorted(kinds) == ["ClusterRole", "ClusterRoleBinding", "CronJob", "Role", "RoleBinding", "ServiceAccount"]
    assert one("mock", "CronJob")["spec"]["jobTemplate"]["spec"]["ttlSecondsAfterFinished"]


def clean_up(case: str) -> tuple[Object, list[str]]:
    """Its pod, and the arguments of its container."""
    spec = one(case, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]["args"]


def test_the_clean_up_knows_every_resource_once_and_families_by_their_pattern() -> None:
    _, arguments = clean_up("everything")
    assert arguments[:6] == [
        "node",
        "clean-up",
        "--namespace=plugwright",
        "--name=plugwright-cleanup",
        "--cluster-role=plugwright-plugwright-cleanup",
        "--give-up-after=0.5h",
    ]
    assert arguments[6:8] == ["--daemon-set=plugwright", "--daemon-set=plugwright-big"]
    served = ["example.com/big", "example.com/gpu", "example.com/widget"]
    assert arguments[8:] == [f"--resource={name}" for name in served]
    assert one("everything", "ConfigMap", "plugwright.served")["data"]["resources"].split() == served
    assert "--resource-pattern=nvidia.com/mig-*" in clean_up("devices")[1]
    assert {flag.partition("=")[0] for flag in arguments[2:]} <= flags_of("node", "clean-up")


def test_without_a_name_of_a_resource_nothing_is_cleaned_up() -> None:
    """Rather than whatever is stale of any vendor."""
    result = helm("template", "--set", "plugin.target=npu:Npu")
    assert result.returncode == 0, result.stderr
    assert "cleanup" not in result.stdout


@pytest.mark.parametrize("case", ["mock", "everything", "devices"])
def test_the_clean_up_runs_the_image_of_the_daemons_where_they_ran(case: str) -> None:
    spec, _ = clean_up(case)
    daemon, *_ = pods(case)
    assert spec["containers"][0]["image"] == daemon["containers"][0]["image"]
    (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = {term["key"]: term["values"][0] for term in preferred["preference"]["matchExpressions"]}
    assert wanted == daemon["nodeSelector"]
    assert all(toleration in spec["tolerations"] for toleration in daemon.get("tolerations", []))


def test_the_clean_up_may_do_what_its_commands_take_and_no_more() -> None:
    rules = one("mock", "ClusterRole")["rules"]
    asked = cluster_role("remove", [], patch=True)["rules"]
    assert isinstance(asked, list)
    assert rules[: len(asked)] == asked
    own = {"plugwright", "plugwright-cleanup", "plugwright-plugwright-cleanup"}
    for rule in [*rules[len(asked) :], *one("mock", "Role")["rules"]]:
        assert set(rule["resourceNames"]) <= own
        # No way from here to a node: nothing that runs is made or changed.
        assert not {"create", "update", "*"} & set(rule["verbs"])
        if "patch" in rule["verbs"]:
            assert set(rule["resources"]) <= {"clusterrolebindings", "rolebindings", "roles"}
    assert {resource for rule in rules for resource in rule["resources"]} == {
        *("nodes", "nodes/status", "pods", "deviceclasses"),
        *("clusterroles", "clusterrolebindings"),
    }


def test_mps_daemons_are_apart_from_the_plugin_and_changed_by_nobody_but_the_operator() -> None:
    (daemons,) = daemon_sets("mps", "mps")
    assert daemons["metadata"]["name"] == "plugwright-shared-mps"
    assert daemons["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    first, second, *flags = container["args"]
    assert (first, second) == ("mps", "run")
    assert {flag.partition("=")[0] for flag in flags} <= flags_of("mps", "run")


def test_mps_daemons_plugin_and_tenants_meet_in_directories_of_the_node() -> None:
    (daemons,) = pods("mps", "mps")
    places = {volume["name"]: volume["hostPath"]["path"] for volume in daemons["volumes"] if "hostPath" in volume}
    assert places == {"mps": "/run/plugwright/mps", "shm": "/dev/shm/tenants"}
    mounts = {mount["name"]: mount["mountPath"] for mount in daemons["containers"][0]["volumeMounts"]}
    assert (mounts["mps"], mounts["shm"]) == ("/run/plugwright/mps", "/dev/shm")
    shared, whole = pods("mps")
    (seen,) = [mount for mount in shared["containers"][0]["volumeMounts"] if mount["name"] == "mps"]
    assert seen == {"name": "mps", "mountPath": "/run/plugwright/mps", "readOnly": True}
    assert "mps" not in {volume["name"] for volume in whole["volumes"]}


def test_only_nodes_of_the_configuration_with_mps_have_daemons() -> None:
    shared, _ = pods("mps")
    (daemons,) = pods("mps", "mps")
    for key in ("nodeSelector", "tolerations"):
        assert daemons[key] == shared[key]
    assert {each["containers"][0]["image"] for each in (*pods("mps"), daemons)} == {f"plugwright-tools:{__version__}"}


def mps_pod(tmp_path: Path, *, mode: str = "leave", mps: Object | None = None, **values: object) -> Object:
    """The MPS pod of a release with one shared resource."""
    share = {"by": "mps", "replicas": 2, "mps": {"mode": mode}}
    config = {"resources": [{"name": "nvidia.com/gpu", "nvidia": {"share": share}}]}
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({"config": config, "mps": {"enabled": True, **(mps or {})}, **values}))
    result = helm("template", "-f", path)
    assert result.returncode == 0, result.stderr
    made = {each["metadata"]["name"]: each for each in yaml.safe_load_all(result.stdout) if each}
    pod: Object = made["plugwright-mps"]["spec"]["template"]["spec"]
    return pod


def test_mps_pods_have_no_more_than_they_need(tmp_path: Path) -> None:
    pod = mps_pod(tmp_path)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        # A server runs as the user of its client.
        "capabilities": {"drop": ["ALL"], "add": ["SETUID", "SETGID", "CHOWN", "FOWNER", "KILL"]},
    }
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert "memory" in container["resources"]["limits"]
    assert container["readinessProbe"]["exec"]["command"] == ["plugwright", "mps", "status"]
    assert not {"livenessProbe", "startupProbe"} & container.keys()  # a restart would end the tenants' programs


@pytest.mark.parametrize(
    ("values", "privileged"),
    [({"mode": "exclusive"}, True), ({"mps": {"privileged": True}}, True),
     ({"mode": "exclusive", "mps": {"privileged": False}}, False)],
    ids=["sets compute modes", "asked for", "refused"],
)  # fmt: skip
def test_mps_pods_are_privileged_if_they_set_compute_modes_or_if_asked(
    values: Object, privileged: bool, tmp_path: Path
) -> None:
    (container,) = mps_pod(tmp_path, **values)["containers"]
    assert container["securityContext"]["privileged"] is privileged
    assert container["securityContext"]["allowPrivilegeEscalation"] is privileged


def test_mps_pods_have_the_seccomp_profile_of_the_values(tmp_path: Path) -> None:
    pod = mps_pod(tmp_path, security={"seccompProfile": "localhost/mps.json"})
    assert pod["securityContext"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": "mps.json"}


MPS_WITHOUT_SENSE = {
    "mps: {enabled: true}\nmock: {enabled: true}": "mps.enabled, but no resource is shared by MPS",
    """
        mps: {enabled: true, root: /srv/mps}
        config: {resources: [{name: nvidia.com/gpu, nvidia: {share: {by: mps, replicas: 2}}}]}
    """: 'mps.root and mps.shm are "/srv/mps" and "/dev/shm/plugwright-mps", but nvidia.com/gpu has share.mps.root',
}


@pytest.mark.parametrize("values", MPS_WITHOUT_SENSE)
def test_mps_that_could_not_work_is_refused_in_plain_words(values: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(textwrap.dedent(values))
    result = helm("template", "-f", path)
    assert result.returncode == 1
    assert MPS_WITHOUT_SENSE[values] in result.stderr


def test_without_clean_up_there_is_nothing_of_it() -> None:
    kinds = [each["kind"] for each in objects("least")]
    assert "CronJob" not in kinds
    assert not {"ClusterRole", "Role"} & set(kinds)


def test_tls_and_a_token_are_given_by_secrets_and_used_by_whoever_asks() -> None:
    for pod in pods("everything"):
        (container,) = pod["containers"]
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert secrets == {"tls": "metrics-tls", "token": "metrics-token"}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
        flags = dict(flag.split("=", 1) for flag in container["args"][1:])
        assert flags["--tls-cert"] == f"{mounts['tls']}/tls.crt"
        assert flags["--tls-key"] == f"{mounts['tls']}/tls.key"
        assert flags["--metrics-token-file"] == f"{mounts['token']}/token"
    (endpoint,) = one("everything", "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "metrics-token", "key": "token"}}


@pytest.mark.parametrize("asked", [True, False])
def test_the_daemon_sees_the_processes_of_the_node_if_asked(asked: bool) -> None:
    result = helm("template", "--set", "mock.enabled=true", "--set", f"security.hostPID={str(asked).lower()}")
    [pods] = [each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "DaemonSet"]
    assert pods["spec"]["template"]["spec"].get("hostPID", False) is asked


def test_the_alerts_are_those_of_the_documentation() -> None:
    (group,) = one("everything", "PrometheusRule")["spec"]["groups"]
    page = (ROOT / "docs" / "operations.md").read_text().partition("## What to watch")[2]
    sections = dict(re.findall(r"^### (Plugwright\w+)\n(.*?)(?=^### )", page, re.MULTILINE | re.DOTALL))
    assert [rule["alert"] for rule in group["rules"]] == list(sections)
    for rule in group["rules"]:
        link = f"https://wiki.example.com/plugwright#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == link
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r"\n\S.+\n\n(    \S.+\n)+\n- Cause: \S.+\n- Cure: \S.+\n\n", sections[rule["alert"]])


def test_a_network_policy_lets_those_in_who_are_named() -> None:
    spec = one("everything", "NetworkPolicy", "plugwright")["spec"]
    selected = spec["podSelector"]["matchLabels"].items()
    for each in daemon_sets("everything"):
        assert selected <= each["spec"]["template"]["metadata"]["labels"].items()
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"port": "metrics"}]
    assert "NetworkPolicy" not in {each["kind"] for each in objects("mock")}


def network_policies(tmp_path: Path, **values: object) -> dict[str, Object]:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = helm("template", "-f", path)
    assert result.returncode == 0, result.stderr
    made = [each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "NetworkPolicy"]
    return {each["metadata"]["name"]: each["spec"] for each in made}


def test_with_a_network_policy_the_pods_reach_nothing(tmp_path: Path) -> None:
    made = network_policies(tmp_path, mock={"enabled": True}, networkPolicy={"enabled": True})
    (spec,) = made.values()
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & spec.keys()


def test_daemons_with_claims_reach_the_api_server_and_the_others_do_not(tmp_path: Path) -> None:
    tape = {"name": "example.com/tape", "mock": {"count": 1}, "serve": "dra"}
    widget = {"name": "example.com/widget", "mock": {"count": 1}}
    server = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    made = network_policies(
        tmp_path,
        config={"resources": [tape]},
        configs={"plain": {"config": {"resources": [widget]}, "nodeSelector": {"example.com/pool": "plain"}}},
        networkPolicy={"enabled": True, "apiServer": {"to": server, "ports": [6443]}},
    )
    assert set(made) == {"plugwright", "plugwright-egress"}
    spec = made["plugwright-egress"]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "daemon"  # not daemon-plain
    assert spec["policyTypes"] == ["Egress"]
    assert spec["egress"] == [{"ports": [{"port": 6443}], "to": server}]


def test_a_service_monitor_finds_the_port_of_every_daemon(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("metrics: {enabled: true, serviceMonitor: {enabled: true}}\nmock: {enabled: true}")
    result = helm("template", "-f", values)
    assert result.returncode == 0, result.stderr
    found = {each["kind"]: each for each in yaml.safe_load_all(result.stdout) if each}
    monitor, service, daemon = (found[kind] for kind in ("ServiceMonitor", "Service", "DaemonSet"))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= daemon["spec"]["template"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = service["spec"]["ports"]
    container = daemon["spec"]["template"]["spec"]["containers"][0]
    assert endpoint["port"] == port["name"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}
    assert endpoint["relabelings"][0]["targetLabel"] == "node"
    assert "PodMonitor" not in found


def test_the_node_report_has_a_port_that_commands_find(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("metrics: {enabled: true, nodeReport: true, tlsSecret: tls}\nmock: {enabled: true}")
    result = helm("template", "-f", values)
    assert result.returncode == 0, result.stderr
    (daemon,) = (each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "DaemonSet")
    template = daemon["spec"]["template"]
    assert report_port(template) == "https:9400"
    assert "--listen-report=on" in template["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("metrics", ["nodeReport: true", "enabled: true, nodeReport: true, tokenSecret: token"])
def test_a_node_report_without_a_port_or_beside_a_token_is_refused(metrics: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"metrics: {{{metrics}}}\nmock: {{enabled: true}}")
    result = helm("template", "-f", values)
    assert result.returncode == 1
    assert "metrics.nodeReport" in result.stderr


def test_two_monitors_are_refused(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    both = "podMonitor: {enabled: true}, serviceMonitor: {enabled: true}"
    values.write_text(f"metrics: {{enabled: true, {both}}}\nmock: {{enabled: true}}")
    result = helm("template", "-f", values)
    assert result.returncode == 1
    assert "would scrape each daemon twice" in result.stderr


def test_the_dashboard_asks_for_metrics_that_the_daemon_has() -> None:
    dashboard = json.loads(one("everything", "ConfigMap", "plugwright-dashboard")["data"]["plugwright.json"])
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
    page = (ROOT / "docs" / "run.md").read_text()
    for name in set(re.findall(r"plugwright_\w+", queries)):
        assert f"`{name.removesuffix('_bucket')}`" in page, name
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == ["Fleet", "Node", "Device"]
