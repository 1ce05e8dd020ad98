"""What the account of a daemon that serves claims may do in a real API server: its node's part, and nothing else."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.deploy.rendered import GOLDEN
from tests.kubernetes.chart_account import chart_account, chart_objects, patched
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.waiting import until

pytestmark = pytest.mark.essential

RELEASE = "rights"
DRIVER = "tape.example.com"
UNBOUND = "the token is not bound to a pod on a node"


@dataclass
class Account:
    """The daemon's account, by a token of a pod on the node or by one of no pod."""

    cluster: Cluster
    bound: str
    unbound: str

    def __call__(self, *arguments: str, given: Object | None = None, token: str = "") -> str:
        text = json.dumps(given) if given is not None else ""
        return self.cluster.kubectl(f"--token={token or self.bound}", *arguments, given=text)

    def patch(self, claim: str, status: Object, token: str = "") -> tuple[int, str]:
        """The answer's code, and the reason of a refusal."""
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim}/status"
        return patched(self.cluster, token or self.bound, path, {"status": status})

    def refused(self, *arguments: str, given: Object | None = None, token: str = "") -> str:
        """What the API server says; the call must not succeed."""
        with pytest.raises(KubectlFailed) as caught:
            self(*arguments, given=given, token=token)
        return str(caught.value)


@pytest.fixture(scope="module")
def account(cluster: Cluster, helm: Path) -> Iterator[Account]:
    """For two resources that are served by claims."""
    values = (GOLDEN / "claims.values.yaml").read_text()
    objects = chart_objects(cluster, helm, RELEASE, values, more=["DeviceClass"])
    with chart_account(cluster, RELEASE, objects, denied=slice_(node="other")) as made:
        yield Account(cluster, made.bound, made.unbound)
        cluster.kubectl("delete", "resourceslices", "--selector=test=rights")


def slice_(name: str = "mine", driver: str = DRIVER, node: str = NODE, **changes: object) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "st0"}], **changes}
    metadata = {"name": name, "labels": {"test": "rights"}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def test_a_node_publishes_changes_and_removes_its_own_slices(account: Account) -> None:
    account("create", "--filename=-", given=slice_())
    account("replace", "--filename=-", given=slice_(devices=[{"name": "st0"}, {"name": "st1"}]))
    assert "mine" in account("get", "resourceslices", f"--field-selector=spec.nodeName={NODE}", "--output=name")
    account("delete", "resourceslice", "mine")


FOREIGN = {
    "node node may not change slices of node other": slice_(node="other"),
    "this account may not change slices of driver gpu.nvidia.com": slice_(driver="gpu.nvidia.com"),
    "node node may not change slices of pool other": slice_(
        pool={"name": "other", "generation": 9, "resourceSliceCount": 1}
    ),
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_it_publishes_nothing_in_anothers_name(account: Account, reason: str) -> None:
    assert reason in account.refused("create", "--dry-run=server", "--filename=-", given=FOREIGN[reason])


def test_it_publishes_nothing_for_all_nodes(account: Account) -> None:
    everywhere = slice_()
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    refused = account.refused("create", "--dry-run=server", "--filename=-", given=everywhere)
    assert "node node may not change slices of node" in refused


def test_another_nodes_slice_is_neither_changed_nor_removed(account: Account, cluster: Cluster) -> None:
    cluster.kubectl.create(slice_("theirs", node="other"))
    reason = "node node may not change slices of node other"
    changed = slice_("theirs", node="other", devices=[])
    assert reason in account.refused("replace", "--dry-run=server", "--filename=-", given=changed)
    assert reason in account.refused("delete", "--dry-run=server", "resourceslice", "theirs")


def test_a_token_of_no_pod_publishes_nothing(account: Account) -> None:
    made = slice_()
    refused = account.refused("create", "--dry-run=server", "--filename=-", given=made, token=account.unbound)
    assert UNBOUND in refused


ALLOWED = {("get", "resourceclaims"), ("list", "resourceclaims"), ("get", "nodes"), ("list", "resourceslices")}
TRIED = [
    *((verb, kind) for kind in ("resourceclaims", "nodes", "pods", "secrets") for verb in ("get", "list", "watch")),
    *((verb, kind) for kind in ("resourceclaims", "nodes", "pods") for verb in ("create", "update", "patch", "delete")),
    *(("create", kind) for kind in ("deviceclasses", "pods/eviction", "pods/exec", "serviceaccounts/token")),
    ("list", "resourceslices"),
]


def test_it_has_no_other_rights(account: Account) -> None:
    def may(verb: str, kind: str) -> bool:
        try:
            return account("auth", "can-i", verb, kind, "--all-namespaces").strip() == "yes"
        except KubectlFailed:
            return False

    assert {(verb, kind) for verb, kind in TRIED if may(verb, kind)} == ALLOWED


@pytest.fixture
def claim(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """An allocated claim; a parameter is the driver and the node."""
    driver, node = getattr(request, "param", (DRIVER, NODE))
    name = "rights-claim"
    made = {"exactly": {"deviceClassName": DRIVER}, "name": "tape"}
    spec = {"devices": {"requests": [made]}}
    metadata = {"name": name, "namespace": "default"}
    cluster.kubectl.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    )
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "tape", "driver": driver, "pool": node, "device": "st0"}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    set_status = ("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "--patch")
    cluster.kubectl(*set_status, json.dumps({"status": {"allocation": allocation}}))
    yield name
    cluster.kubectl(*set_status, json.dumps({"status": {"allocation": None, "reservedFor": None}}))
    cluster.kubectl("delete", "resourceclaim", name)


def device(driver: str = DRIVER, node: str = NODE) -> Object:
    condition = {"type": "Ready", "status": "True", "reason": "Prepared", "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    return {"devices": [{"driver": driver, "pool": node, "device": "st0", "conditions": [condition]}]}


def test_a_driver_reports_on_a_claim_of_its_node(account: Account, claim: str, cluster: Cluster) -> None:
    assert account.patch(claim, device()) == (200, "")
    found = cluster.kubectl.get("resourceclaim", claim)
    assert found is not None
    assert found["status"]["devices"][0]["conditions"][0]["type"] == "Ready"


def test_it_does_so_by_server_side_apply_too(account: Account, claim: str) -> None:
    metadata = {"name": claim, "namespace": "default"}
    applied = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "status": device()}
    account("apply", "--server-side", "--subresource=status", "--filename=-", given=applied)


@pytest.mark.parametrize("claim", [(DRIVER, "other"), ("gpu.nvidia.com", NODE)], indirect=True, ids=["node", "driver"])
def test_it_reports_on_no_claim_of_another_node_or_driver(
    account: Account, claim: str, request: pytest.FixtureRequest
) -> None:
    driver, node = request.node.callspec.params["claim"]
    code, reason = account.patch(claim, device(driver, node))
    assert code in (403, 422), reason
    assert "resourceclaims/driver" in reason


def test_a_token_of_no_pod_reports_nothing(account: Account, claim: str) -> None:
    code, reason = account.patch(claim, device(), account.unbound)
    assert code in (403, 422), reason
    assert UNBOUND in reason or "resourceclaims/driver" in reason


@pytest.fixture
def claim_with_entries(account: Account, claim: str, cluster: Cluster) -> Iterator[str]:
    """Its status has an entry of this node, and one each of another driver and another node."""
    name = "rights-of-drivers"
    verbs = "--verb=associated-node:patch,arbitrary-node:patch"
    results = [
        {"request": "tape", "driver": driver, "pool": node, "device": "st0"}
        for driver, node in ((DRIVER, NODE), *OTHERS.values())
    ]
    status = ("patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "--patch")
    for allocation in (None, {"devices": {"results": results}}):  # an allocation cannot be changed, but made again
        cluster.kubectl(*status, json.dumps({"status": {"allocation": allocation}}))
    cluster.kubectl(*status, json.dumps({"status": {"devices": entries()}}))
    cluster.kubectl("create", "clusterrole", name, verbs, "--resource=resourceclaims.resource.k8s.io/driver")
    who = f"--serviceaccount={RELEASE}:{RELEASE}-plugwright"
    cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", who)
    may = ("auth", "can-i", "arbitrary-node:patch", "resourceclaims", "--subresource=driver", "--quiet")
    until("the right is there", lambda: cluster.kubectl.works(f"--token={account.bound}", *may))
    yield claim
    cluster.kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")
    until("the right is gone", lambda: not cluster.kubectl.works(f"--token={account.bound}", *may))


OTHERS = {"driver": ("gpu.nvidia.com", NODE), "node": (DRIVER, "other")}


def entries(**changed: str) -> list[Object]:
    """One for each device of the claim, with conditions of the status that `changed` has for some."""
    return [
        {**device(driver, node)["devices"][0], "data": {"said": changed.get(which, "nothing")}}
        for which, (driver, node) in {"own": (DRIVER, NODE), **OTHERS}.items()
    ]


def test_it_changes_only_its_own_entries_of_a_claims_status(account: Account, claim_with_entries: str) -> None:
    """By the policy alone: a role lets the account speak for every driver and node, as Kubernetes up to 1.35 does."""
    assert account.patch(claim_with_entries, {"devices": entries(own="ready")}) == (200, "")
    for which in OTHERS:
        code, reason = account.patch(claim_with_entries, {"devices": entries(own="ready", **{which: "forged"})})
        assert code in (403, 422), reason
        assert "this account may change only its own node's and drivers' devices" in reason
    code, reason = account.patch(claim_with_entries, {"devices": entries(own="ready")[:1]})
    assert code in (403, 422), reason
    assert "this account may change only its own node's and drivers' devices" in reason


RESERVED = [{"resource": "pods", "name": "x", "uid": "y"}]


@pytest.fixture(params=["by the API server", "by the policy alone"])
def guard(request: pytest.FixtureRequest, account: Account, cluster: Cluster) -> Iterator[str]:
    """Kubernetes up to 1.35 lets whoever may change the status change all of it; so does a right of schedulers here."""
    name = "rights-of-schedulers"
    if request.param == "by the API server":
        yield "resourceclaims/binding"
        return
    cluster.kubectl("create", "clusterrole", name, "--verb=patch", "--resource=resourceclaims.resource.k8s.io/binding")
    cluster.kubectl(
        "create",
        "clusterrolebinding",
        name,
        f"--clusterrole={name}",
        f"--serviceaccount={RELEASE}:{RELEASE}-plugwright",
    )
    may = ("auth", "can-i", "patch", "resourceclaims", "--subresource=binding", "--all-namespaces", "--quiet")
    until("the right is there", lambda: cluster.kubectl.works(f"--token={account.bound}", *may))
    yield "this account may change nothing of a claim's status but its devices"
    cluster.kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")
    until("the right is gone", lambda: not cluster.kubectl.works(f"--token={account.bound}", *may))


@pytest.mark.parametrize("status", [{"allocation": None}, {"reservedFor": RESERVED}], ids=["frees", "reserves"])
def test_it_frees_and_reserves_no_claim(account: Account, claim: str, status: Object, guard: str) -> None:
    code, reason = account.patch(claim, status)
    assert code in (403, 422), reason
    assert guard in reason


def test_without_the_policies_a_node_could_publish_in_anothers_name(account: Account, cluster: Cluster) -> None:
    """The control; the last of this module."""
    name = f"{RELEASE}-{RELEASE}-plugwright-slices"
    cluster.kubectl("delete", "validatingadmissionpolicybinding", name)
    until(
        "the policy is gone",
        lambda: cluster.kubectl.works(
            f"--token={account.bound}", "delete", "--dry-run=server", "resourceslice", "theirs"
        ),
    )
