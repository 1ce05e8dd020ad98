"""The account that the chart gives a daemon which serves claims: its rights, and a token as its pod has one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.deploy.rendered import CHART
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.waiting import until

__all__ = ["ChartAccount", "chart_account", "chart_objects"]

_RIGHTS = (
    "ClusterRole",
    "ClusterRoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


@dataclass(frozen=True, slots=True)
class ChartAccount:
    """`bound` is the token of a pod on the node, `unbound` one of no pod."""

    name: str
    bound: str
    unbound: str


def chart_objects(cluster: Cluster, helm: Path, release: str, values: str, more: Sequence[str] = ()) -> list[Object]:
    """What the chart makes in the cluster for claims: rights, and the kinds of `more`."""
    version = f"--kube-version={cluster.version}"
    arguments = ("template", release, CHART, f"--namespace={release}", version, "--values=-")
    done = cluster.run(helm, *arguments, given=values)
    assert done.returncode == 0, done.stderr
    found = [made for made in yaml.safe_load_all(done.stdout) if made and made["kind"] in (*_RIGHTS, *more)]
    return [made for made in found if "helm.sh/hook" not in made["metadata"].get("annotations", {})]


@contextmanager
def chart_account(cluster: Cluster, release: str, objects: Sequence[Object], denied: Object) -> Iterator[ChartAccount]:
    """The account of these objects, once its policies are in force: they deny the slice `denied`."""
    kubectl, name, where = cluster.kubectl, f"{release}-plugwright", f"--namespace={release}"
    kubectl("create", "namespace", release)
    kubectl.create(*objects)
    until("its account is known", lambda: kubectl.works("get", where, "serviceaccount", name))
    kubectl.create(_pod(name, release))
    token = (where, "create", "token", name)
    bound = kubectl(*token, "--bound-object-kind=Pod", "--bound-object-name=daemon").strip()
    account = ChartAccount(name, bound, kubectl(*token).strip())
    until("the policies are in force", lambda: _is_denied(cluster, account, denied))
    try:
        yield account
    finally:
        names = [f"{made['kind']}/{made['metadata']['name']}" for made in objects if made["kind"] != "ServiceAccount"]
        kubectl("delete", "--ignore-not-found", *names)
        kubectl("delete", "namespace", release, "--wait=false")


def _is_denied(cluster: Cluster, account: ChartAccount, denied: Mapping[str, object]) -> bool:
    """Asked with a slice that the policies deny; nothing is made."""
    try:
        cluster.kubectl(
            f"--token={account.bound}", "create", "--dry-run=server", "--filename=-", given=yaml.safe_dump(dict(denied))
        )
    except KubectlFailed as error:
        return "may not change slices" in str(error)
    return False


def _pod(account: str, namespace: str) -> Object:
    container = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "1000000"]}
    spec: Object = {"serviceAccountName": account, "nodeName": NODE, "containers": [container]}
    spec |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "daemon", "namespace": namespace}, "spec": spec}
