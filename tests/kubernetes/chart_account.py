"""The account that the chart gives a daemon which serves claims: its rights, and a token as its pod has one."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.deploy.rendered import CHART
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import API, NODE
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.waiting import until

__all__ = ["ChartAccount", "chart_account", "chart_objects", "patched"]

_PATCH = """
import json, ssl, sys, urllib.error, urllib.request
address, authority, token, kind = sys.argv[1:]
headers = {"Authorization": "Bearer " + token, "Content-Type": f"application/{kind}+json"}
request = urllib.request.Request(address, sys.stdin.buffer.read(), headers, method="PATCH")
try:
    print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority)).status)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["message"])
"""

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


def patched(cluster: Cluster, token: str, path: str, body: Object, kind: str = "merge-patch") -> tuple[int, str]:
    """The answer's code, and the reason of a refusal. kubectl would read a subresource first, by a right more."""
    arguments = (f"https://{API}{path}", str(cluster.files.keys / "apiserver.crt"), token, kind)
    done = cluster.run(sys.executable, "-c", _PATCH, *arguments, given=json.dumps(body))
    assert done.returncode == 0, done.stderr
    code, _, reason = done.stdout.partition(" ")
    return int(code), reason.strip()


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
