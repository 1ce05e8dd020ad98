"""`plugwright manifest`: the objects of the chart, without Helm."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.deploy.rendered import Object, host_mounts, objects, one

from plugwright.cli.main import cli

FILE = "# ours\nresources:\n  - name: example.com/widget   # two of them\n    mock: {count: 2}\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["manifest", *map(str, arguments)])


def printed(*arguments: object) -> dict[str, Object]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(result.output)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plugwright.yaml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("kind", ["PriorityClass", "ServiceAccount", "ConfigMap", "DaemonSet"])
def test_the_manifest_equals_the_chart_with_its_default_values(kind: str) -> None:
    rendered = one("mock", kind, "plugwright-plugwright" if kind == "PriorityClass" else "plugwright")
    for helms_own in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
        del rendered["metadata"]["labels"][helms_own]
    assert printed()[kind] == rendered


def test_what_claims_need_equals_the_chart_too(tmp_path: Path) -> None:
    rendered = {(made["kind"], made["metadata"]["name"]): made for made in objects("claims")}
    path = tmp_path / "plugwright.yaml"
    path.write_text(rendered["ConfigMap", "plugwright"]["data"]["plugwright.yaml"])
    result = run("-c", path)
    assert result.exit_code == 0, result.output
    printed = [made for made in yaml.safe_load_all(result.output) if made["kind"] != "Namespace"]
    for made in printed:
        wanted = rendered[made["kind"], made["metadata"]["name"]]
        for helms_own in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            del wanted["metadata"]["labels"][helms_own]
        assert made == wanted
    kinds = [made["kind"] for made in printed]
    assert [kinds.count(kind) for kind in ("DeviceClass", "ValidatingAdmissionPolicy", "ClusterRole")] == [2, 2, 1]


def test_the_file_is_taken_as_it_is_with_its_comments(path: Path) -> None:
    assert printed("-c", path)["ConfigMap"]["data"] == {"plugwright.yaml": FILE}


def test_a_bad_file_is_refused_with_its_line(path: Path) -> None:
    path.write_text("resources:\n  - name: example.com/widget\n    mokc: {}\n")
    result = run("-c", path)
    assert "plugwright.yaml:3" in str(result.exception)
    assert result.output == ""


def test_namespace_and_image_are_as_asked() -> None:
    found = printed("--namespace", "devices", "--image", "registry.example.com/plugwright@sha256:00")
    assert found["Namespace"]["metadata"]["name"] == "devices"
    assert {manifest["metadata"].get("namespace", "devices") for manifest in found.values()} == {"devices"}
    container = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example.com/plugwright@sha256:00"


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_a_namespace_that_is_there_already_is_not_made_nor_deleted(namespace: str) -> None:
    assert "Namespace" not in printed("--namespace", namespace)


@pytest.mark.parametrize("namespace", ["", "Devices", "a b", "-a", "x" * 64])
def test_an_invalid_namespace_is_a_usage_error(namespace: str) -> None:
    assert run("--namespace", namespace).exit_code == 2


def test_the_same_is_printed_every_time() -> None:
    assert run().output == run().output
    assert "&id" not in run().output


def test_a_plugin_of_ones_own_is_served_without_a_file() -> None:
    flags = ("--plugin", "npu:Npu", "--image", "npu:1", "--name", "npu", "--host-path", "/run/npu")
    found = printed(*flags)
    assert list(found) == ["Namespace", "PriorityClass", "ServiceAccount", "DaemonSet"]
    assert found["Namespace"]["metadata"]["name"] == "plugwright"
    spec = found["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/name"] == "npu"
    pod = spec["template"]["spec"]
    assert pod["priorityClassName"] == found["PriorityClass"]["metadata"]["name"] == "plugwright-npu"
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"] == "npu"
    container = pod["containers"][0]
    assert container["image"] == "npu:1"
    assert container["args"][:3] == ["run", "npu:Npu", "--kubelet-dir=/var/lib/kubelet"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {"name": "host-0", "mountPath": "/run/npu", "readOnly": True} in container["volumeMounts"]
    assert "config" not in {volume["name"] for volume in pod["volumes"]}
    [state] = [volume for volume in pod["volumes"] if volume["name"] == "state"]
    assert state["hostPath"]["path"] == "/var/lib/plugwright-npu"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--plugin", "npu:Npu", "--host-path", "run"), "--host-path must be absolute, got 'run'"),
        (("--name", "npu"), "--name, --host-path, --serve and --resource are for --plugin"),
        (("--plugin", "npu:Npu", "--serve", "dra"), "--serve needs --resource"),
        (("--plugin", "npu:Npu", "--resource", "example.com/npu"), "--resource needs --serve"),
        (("--plugin", "npu:Npu", "--name", "N P U"), "must have lower-case letters"),
    ],
)
def test_flags_of_a_plugin_that_make_no_sense_are_refused(flags: tuple[str, ...], line: str) -> None:
    result = run(*flags)
    assert result.exit_code == 2
    assert line in result.output


def test_a_plugin_of_ones_own_may_serve_claims() -> None:
    flags = ("--plugin", "npu:Npu", "--name", "npu", "--namespace", "devices", "--serve", "dra")
    found = printed(*flags, "--resource", "example.com/npu")
    assert found["DeviceClass"]["metadata"]["name"] == "npu.example.com"
    account = found["ServiceAccount"]["metadata"]
    assert found["ClusterRoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert "system:serviceaccount:devices:npu" in str(found["ValidatingAdmissionPolicy"])
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert pod["containers"][0]["args"][:3] == ["run", "npu:Npu", "--serve=dra"]
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert {"/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"} <= set(paths)


def test_each_manifest_is_a_release_that_shares_the_directory_of_the_node() -> None:
    pod = printed("--plugin", "npu:Npu", "--name", "npu", "--namespace", "devices")["DaemonSet"]["spec"]["template"][
        "spec"
    ]
    container = pod["containers"][0]
    assert {"--release=devices/npu", "--node-dir=/var/lib/plugwright-node"} <= set(container["args"])
    assert {"name": "node", "mountPath": "/var/lib/plugwright-node"} in container["volumeMounts"]
    [node] = [volume for volume in pod["volumes"] if volume["name"] == "node"]
    assert node["hostPath"]["path"] == "/var/lib/plugwright"


@pytest.mark.parametrize("flags", [(), ("--serve", "dra", "--resource", "example.com/npu")])
def test_a_directory_that_the_daemon_writes_is_mounted_once(flags: tuple[str, ...]) -> None:
    paths = ("/var/run/cdi", "/var/lib/kubelet/plugins")
    named = [flag for path in paths for flag in ("--host-path", path)]
    pod = printed("--plugin", "npu:Npu", *named, *flags)["DaemonSet"]["spec"]["template"]["spec"]
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] in paths]
    assert sorted(mount["mountPath"] for mount in mounts) == sorted(paths)
    assert not any(mount.get("readOnly") for mount in mounts)


def test_the_cdi_directory_of_the_file_is_mounted(path: Path) -> None:
    path.write_text(f"{FILE}host: {{cdi: /etc/cdi}}\n")
    pod = printed("-c", path)["DaemonSet"]["spec"]["template"]["spec"]
    assert {"name": "cdi", "mountPath": "/etc/cdi"} in pod["containers"][0]["volumeMounts"]
    assert {"name": "cdi", "hostPath": {"path": "/etc/cdi", "type": "DirectoryOrCreate"}} in pod["volumes"]


def test_a_plugin_and_a_file_are_not_served_together(path: Path) -> None:
    assert run("-c", path, "--plugin", "npu:Npu").exit_code == 2


@pytest.mark.parametrize("number", [0, 1])
def test_devices_have_the_mounts_that_the_chart_gives_them(number: int, tmp_path: Path) -> None:
    """Of every kind that needs one: chosen by the family here, and by the templates there."""
    sets = [each for each in objects("devices") if each["kind"] == "DaemonSet"]
    files = [each for each in objects("devices") if each["kind"] == "ConfigMap" and "plugwright.yaml" in each["data"]]
    path = tmp_path / "plugwright.yaml"
    path.write_text(files[number]["data"]["plugwright.yaml"])
    pod = printed("-c", path)["DaemonSet"]["spec"]["template"]["spec"]
    rendered = sets[number]["spec"]["template"]["spec"]
    assert host_mounts(pod) == host_mounts(rendered)
    assert [mount["path"] for mount in host_mounts(pod)] == MOUNTED[number]
    assert pod["containers"][0]["image"].split("/")[-1] == rendered["containers"][0]["image"].split("/")[-1]


MOUNTED = [
    [
        *("/dev", "/run/rehearsed", "/srv/dongles", "/srv/licenses", "/sys", "/var/run/cdi"),
        "/var/run/k8s.cni.cncf.io/devinfo/dp",
    ],
    [
        *("/dev", "/usr", "/dev", "/proc", "/sys", "/run/nvidia/driver", "/usr/local/vgpu"),
        *("/var/lib/plugwright/vgpu", "/var/run/cdi"),
    ],
]


def test_a_directory_that_the_container_needs_itself_is_not_hidden(path: Path) -> None:
    path.write_text("resources:\n  - name: example.com/agent\n    paths: [/run/agent.sock]\n")
    words = "example.com/agent: /run cannot be mounted at its own path in the daemon's pod: set host.root"
    assert words in str(run("-c", path).exception)
    path.write_text(f"{path.read_text()}host: {{root: /host}}\n")
    pod = printed("-c", path)["DaemonSet"]["spec"]["template"]["spec"]
    assert [mount["mountPath"] for mount in host_mounts(pod)] == ["/host/dev", "/host/proc", "/host/run", "/host/sys"]
