"""`plugwright node`, against an imitated cluster over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.cli.processes import Ended, ended, python
from tests.extended_resources.imitation import Cluster, Time, pod
from tests.extended_resources.kubelet import Kubelet
from tests.extended_resources.serving import serving

from plugwright.cli.main import cli
from plugwright.errors import PlugwrightError
from plugwright.system.boot import boot_id

QUICK = ("--wait", "--round", "0.1s")


class Lab:
    """One node of a cluster, and the kubeconfig that leads there."""

    def __init__(self, cluster: Cluster, kubeconfig: Path) -> None:
        self.cluster, self.kubeconfig = cluster, kubeconfig
        self.kubelet = Kubelet(cluster, "n1")

    async def node(self, *arguments: object) -> Ended:
        return await ended(python("-m", "plugwright", "node", *arguments), {"KUBECONFIG": str(self.kubeconfig)})

    def within(self, *arguments: str) -> Result:
        """The same without a process of its own, which takes half a second."""
        return CliRunner().invoke(cli, ["node", *arguments], env={"KUBECONFIG": str(self.kubeconfig)})


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    cluster = Cluster(Time())
    cluster.add_node("n1", boot_id=boot_id())
    with serving(cluster, tmp_path) as kubeconfig:
        yield Lab(cluster, kubeconfig)


def one_line(done: Ended) -> str:
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    return done.err.removeprefix("plugwright: ").rstrip()


async def test_resources_are_listed_with_their_pods_and_backing(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 9, unhealthy=1)
    lab.kubelet.serve("mock/lost", 0)
    lab.cluster.set("n1", "kubectl-patch", {"example.com/dongle": 4}, {})
    lab.cluster.pods = [pod("p1", "n1", {"mock/gpu": 2})]
    done = await lab.node("resources")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "NODE  RESOURCE            CAPACITY  ALLOCATABLE  REQUESTED  BACKED BY  PODS",
        "n1    example.com/dongle  4         -            0          manual",
        "        capacity was set by kubectl-patch at 2026-11-15T00:00:00Z, not by the kubelet",
        "n1    mock/gpu            10        9            2          plugin     default/p1:2",
        "        the kubelet counts 9 of 10 devices healthy",
        "n1    mock/lost           0         0            0          unknown",
        "        the kubelet counts no device of it: either its plugin is gone, or it runs and lists no device",
    ]


async def test_resources_as_json(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 2)
    lab.cluster.pods = [pod("p1", "n1", {"mock/gpu": 1})]
    done = await lab.node("resources", "n1", "--output", "json")
    (shown,) = json.loads(done.out)["nodes"]
    assert (shown["name"], shown["silence"]) == ("n1", "")
    assert shown["resources"] == [
        {
            "name": "mock/gpu",
            "capacity": 2,
            "allocatable": 2,
            "requested": 1,
            "backing": "plugin",
            "evidence": "the kubelet counts 2 of 2 devices healthy",
            "pods": [{"namespace": "default", "name": "p1", "count": 1, "claim": False}],
        }
    ]


async def test_resources_with_the_kubelets_directory(lab: Lab, root: Path) -> None:
    (root / "device-plugins").mkdir()
    lab.kubelet.serve("mock/gpu", 2)
    done = await lab.node("resources", "--kubelet-dir", root)
    assert "stale" in done.out
    assert "the kubelet's checkpoint no longer names it" in done.out


async def test_resources_of_a_cluster_without_any(lab: Lab) -> None:
    done = await lab.node("resources")
    assert (done.code, done.out) == (0, "no extended resources\n")


async def test_add_then_remove(lab: Lab) -> None:
    done = await lab.node("add", "n1", "example.com/dongle=4")
    assert done.out == "n1 example.com/dongle: added: the kubelet offers it from its next status update on\n"
    assert lab.cluster.counts("n1", "example.com/dongle") == ("4", None)
    done = await lab.node("remove", "n1", "example.com/dongle", *QUICK)
    assert (done.code, lab.cluster.counts("n1", "example.com/dongle")) == (0, (None, None))
    assert done.out.startswith("n1 example.com/dongle: removed: not put back within two status updates (")
    assert "n1 example.com/dongle: removed; checking whether the kubelet puts it back" in done.err


async def test_removal_of_a_served_resource_has_exit_code_1(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 2)
    done = await lab.node("remove", "n1", "mock/gpu", "--output", "json")
    (change,) = json.loads(done.out)["changes"]
    assert (done.code, change["node"], change["resource"], change["result"]) == (1, "n1", "mock/gpu", "refused")
    assert lab.cluster.counts("n1", "mock/gpu") == ("2", "2")


async def test_remove_stale_leaves_other_resources(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 2)
    lab.kubelet.serve("mock/lost", 0)
    lab.kubelet.serve("mock/other", 0)
    done = await lab.node("remove", "--stale", "--all-nodes", "--resource", "mock/lost", "-o", "json", *QUICK)
    assert (done.code, done.err) == (0, "")
    assert [change["result"] for change in json.loads(done.out)["changes"]] == ["removed"]
    assert lab.cluster.counts("n1", "mock/other") == ("0", "0")
    done = await lab.node("remove", "--stale", "n1", "--dry-run")
    would = "remove /status/capacity/mock~1other, remove /status/allocatable/mock~1other"
    assert done.out == f"n1 mock/other: would remove: {would}\n"


async def test_remove_stale_without_stale_resources_prints_so(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 2)
    done = await lab.node("remove", "--stale", "--all-nodes", "--wait")
    assert (done.code, done.out) == (0, "nothing is stale\n")


async def test_a_timeout_ends_with_exit_code_1(lab: Lab) -> None:
    lab.kubelet.serve("mock/gpu", 2)
    lab.kubelet.stop("mock/gpu")
    done = await lab.node("remove", "n1", "mock/gpu", "--timeout", "0.2s", *QUICK)
    assert done.code == 1
    assert done.out.startswith("n1 mock/gpu: timed out: after 0 s: capacity 2, allocatable 0: ")


@pytest.mark.parametrize(
    ("arguments", "verbs"),
    [
        (["resources"], {"nodes": ["list"], "pods": ["list"], "deviceclasses": ["list"]}),
        (
            ["remove", "--stale", "--all-nodes"],
            {"nodes": ["get", "list"], "nodes/status": ["patch"], "pods": ["list"], "deviceclasses": ["list"]},
        ),
    ],
)
def test_rbac_prints_the_least_role(lab: Lab, arguments: list[str], verbs: dict[str, list[str]]) -> None:
    role = yaml.safe_load(lab.within(*arguments, "--rbac").stdout)
    assert {rule["resources"][0]: rule["verbs"] for rule in role["rules"]} == verbs
    lab.kubelet.serve("mock/lost", 0)
    assert lab.within(*arguments).exit_code == 0
    assert set(lab.cluster.asked) == {f"{verb} {resource}" for resource in verbs for verb in verbs[resource]}


async def test_missing_cluster_is_one_line(tmp_path: Path) -> None:
    done = await ended(python("-m", "plugwright", "node", "resources"), {"HOME": str(tmp_path), "KUBECONFIG": ""})
    assert one_line(done).startswith("no cluster: no --kubeconfig, no KUBECONFIG, no ~/.kube/config")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["resources", "n9"], "there is no node 'n9'"),
        (["add", "n9", "a/b=1"], "there is no node 'n9'"),
        (["remove", "n1", "a/b"], "node n1 has no extended resource 'a/b'; it has: none"),
        (["remove", "n1", "cpu"], "node n1 has no extended resource 'cpu'; it has: none"),
        (["resources", "--context", "x"], "the kubeconfig has no context 'x', only: here"),
        (["resources", "--kubeconfig", "/none"], "there is no kubeconfig /none"),
        (["resources", "--kubelet-dir", "/none"], "cannot read the kubelet's directory: "),
    ],
)
def test_impossible_request_is_our_error(lab: Lab, arguments: list[str], complaint: str) -> None:
    done = lab.within(*arguments)
    assert (done.exit_code, done.output) == (1, "")
    assert isinstance(done.exception, PlugwrightError)
    assert str(done.exception).startswith(complaint)


async def test_forbidden_request_is_one_line(lab: Lab) -> None:
    lab.cluster.forbidden = {"patch nodes/status"}
    assert one_line(await lab.node("add", "n1", "a/b=1")).startswith("not allowed to patch nodes/status: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "n1"],
        ["add", "n1", "a/b"],
        ["add", "n1", "a/b=1.5"],
        ["add", "n1", "a/b=-1"],
        ["add", "n1", "a/b=9223372036854775808"],
        ["add", "n1", "nodomain=1"],
        ["remove", "n1"],
        ["remove", "--stale"],
        ["remove", "--stale", "n1", "--all-nodes"],
        ["remove", "--all-nodes", "a/b"],
        ["remove", "n1", "a/b", "--resource", "a/b"],
        ["remove", "n1", "a/b", "--resource-pattern", "a.b/*"],
        ["remove", "--stale", "--all-nodes", "--resource", "a.b/*"],
        ["remove", "--stale", "--all-nodes", "--resource-pattern", "*/gpu"],
        ["remove", "--stale", "--all-nodes", "--resource-pattern", "*"],
        ["clean-up", "--namespace", "a", "--name", "a", "--cluster-role", "a"],
        ["remove", "n1", "a/b", "--timeout", "soon"],
    ],
)
def test_a_wrong_call_is_exit_code_2(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, ["node", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Error: " in done.stderr


@pytest.mark.parametrize("command", [[], ["resources"], ["add"], ["remove"]])
def test_help_has_an_example(command: list[str]) -> None:
    done = CliRunner().invoke(cli, ["node", *command, "--help"])
    assert done.exit_code == 0
    assert "Example" in done.stdout


def test_stale_resources_are_removed_by_a_pattern_of_one_vendor(lab: Lab) -> None:
    for resource in ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu", "example.com/mig-1g.10gb"):
        lab.kubelet.serve(resource, 0)
    done = lab.within("remove", "--stale", "--all-nodes", "--dry-run", "--resource-pattern", "nvidia.com/mig-*")
    assert done.exit_code == 0, done.output
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["nvidia.com/mig-1g.10gb:"]


async def test_no_extra_is_needed(lab: Lab) -> None:
    """A module that cannot be loaded stands for one that is not installed."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(['lightkube', 'httpx2', 'starlette', 'cryptography'])\n"
        "from plugwright.cli.main import main; main()"
    )
    done = await ended(python("-c", program, "node", "resources"), {"KUBECONFIG": str(lab.kubeconfig)})
    assert (done.code, done.out, done.err) == (0, "no extended resources\n", "")
