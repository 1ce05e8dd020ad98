"""One kubectl session, played to any cluster: what is typed, and what is printed with all that differs by nature alike.

`test_kubectl` plays it to the real API server and to the embedded one. A step that is known to differ names its row in
docs/cluster-differences.md.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.kubernetes.images import BUSYBOX

__all__ = ["NAMESPACE", "RESOURCE", "STEPS", "Said", "Speaker", "Step", "comparable"]

NAMESPACE, RESOURCE = "session", "session/gpu"
_STAY = ["sh", "-c", "trap exit TERM; sleep 1000000 & wait"]


@dataclass(frozen=True, slots=True)
class Said:
    """What kubectl printed, and how it ended."""

    code: int
    out: str
    error: str

    def __str__(self) -> str:
        return f"{self.out}{self.error}[{self.code}]"


@dataclass(frozen=True, slots=True)
class Step:
    """`kubectl arguments`, with `given` on its input.

    `differs` is the row of the docs that says why it does; lines that match `aside` are not compared.
    """

    arguments: tuple[str, ...]
    given: str = ""
    differs: str = ""
    aside: str = ""


Speaker = Callable[[Step], Said]


def _pod(name: str, labels: dict[str, str] | None = None, image: str = BUSYBOX, **resources: object) -> str:
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": _STAY, "resources": resources}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}
    )


def k(text: str, given: str = "", differs: str = "") -> Step:
    return Step(tuple(text.split()), given, differs)


def _status(
    value: object, operation: str = "add", name: str = "session~1extra", part: str = "--subresource=status"
) -> Step:
    patch = [{"op": operation, "path": f"/status/capacity/{name}", **({"value": value} if value is not None else {})}]
    return Step(("patch", "node", "NODE", "--type=json", f"--patch={json.dumps(patch)}", *part.split()))


_GOOD = _pod("good", {"app": "x"}, limits={RESOURCE: 2, "cpu": "100m", "memory": "65536Ki"})
_SMALL, _APPLIED = _pod("small", {"app": "y"}), _pod("applied")
_BINDING = json.dumps({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "good"}, "target": {"name": "NODE"}})
_NOTHING = json.dumps({"apiVersion": "v1", "kind": "Nothing", "metadata": {"name": "a"}})

# Ids, the token of the service account that is mounted, and a warning of this cluster alone, which has no DNS
_RUNTIME = r"(Container|Image) ID:|Mounts:|Volumes:|kube-api-access|Type: +Projected|TokenExp|ConfigMapName|Optional:"
_RUNTIME += r"|DownwardAPI|MissingClusterDNS"
_MACHINE = r"^ +(cpu|memory|ephemeral-storage):|OS Image:|Container Runtime Version:|PodCIDRs?:"
_MACHINE += r"|^ +(Normal|Warning) .* kubelet "  # how often it was started is up to the tests before

STEPS: list[Step] = [
    k("create namespace session"),
    k("create namespace session"),
    k("create namespace Bad_Name"),
    k("get namespace session"),
    k("get namespace session -o yaml"),
    k("describe namespace session", differs="quotas"),
    k("wait --for=create serviceaccount/default --timeout=20s"),
    k("get serviceaccounts"),
    k("create configmap settings --from-literal=a=b"),
    k("get configmaps settings"),
    k("describe configmap settings"),
    k("get configmap settings -o yaml"),
    k("create serviceaccount bob"),
    k("describe serviceaccount bob"),
    # Pods that are refused
    k("create -f -", _pod("bad", limits={RESOURCE: "1.5"})),
    k("create -f -", _pod("bad", limits={RESOURCE: -1})),
    k("create -f -", _pod("bad", requests={RESOURCE: 1})),
    k("create -f -", _pod("bad", limits={RESOURCE: 2}, requests={RESOURCE: 1})),
    k("create -f -", _pod("bad", limits={"gpu": 1})),
    k("create -f -", _pod("bad", limits={"a/b/c": 1})),
    k("create -f -", _pod("bad", limits={RESOURCE: "many"})),
    k("create -f -", _pod("bad", limits={"cpu": 1}, requests={"cpu": 2})),
    k("create -f -", _pod("Bad_Name")),
    k("create -f -", _pod("bad", {"a b": "c"})),
    k("create -f -", _pod("bad", image="")),
    k("create -f -", '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":"x"}}'),
    k("create -f -", '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"bogus":1}}'),
    k("create -f -", '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{}}'),
    k("create -f -", _NOTHING),
    # A pod that runs
    k("apply -f -", _GOOD),
    k("apply -f -", _GOOD),
    k("wait --for=condition=Ready pod/good --timeout=60s"),
    k("get pods"),
    k("get pods -o wide"),
    k("get pod good --watch --output-watch-events --request-timeout=1s"),
    k("get pods -l app=x --show-labels"),
    k("get pods -l app!=x"),
    k("get pods --field-selector=status.phase=Running -o name"),
    k("get pods --field-selector=spec.color=red"),
    k("get pod good -o jsonpath={.spec.containers[0].resources}"),
    k("get pod good -o jsonpath={.status.phase}/{.status.qosClass}/{.spec.schedulerName}"),
    k("get pod nope"),
    k("create -f -", _GOOD),
    k("apply -f -", _pod("good", {"app": "z"}, limits={RESOURCE: 2, "cpu": "100m", "memory": "65536Ki"})),
    k("label pod good team=blue"),
    k("label pod good team=red"),
    k("label pod good team-"),
    k("annotate pod good note=hello"),
    k('patch pod good -p {"spec":{"nodeName":"other"}}', differs="pod updates"),
    k('patch pod good -p {"spec":{"nosuch":1}}'),
    k("patch pod good --type=json -p {}"),
    k("patch pod good --type=merge -p []"),
    k("create --raw /api/v1/namespaces/session/pods/good/binding -f -", _BINDING),
    k("apply --server-side -f -", _APPLIED),
    k("delete pod applied --ignore-not-found"),
    k("apply --dry-run=server -f -", _SMALL),
    k("create --dry-run=client -o name -f -", _SMALL),
    k("run quick --image=busybox --dry-run=server"),
    k("get pods -o name"),
    k("logs good", differs="logs"),
    k("logs good --container=nope"),
    k("logs nope"),
    k("get all"),
    Step(("describe", "pod", "good"), aside=_RUNTIME),
    Step(("describe", "node", "NODE"), aside=_MACHINE),
    # The node
    k("get nodes"),
    _status("7"),
    k("get node NODE -o jsonpath={.status.capacity.session/extra}"),
    _status("1000"),
    k("get node NODE -o jsonpath={.status.capacity.session/extra}"),
    _status("8", part="--output=name"),
    _status("1.5"),
    _status("-1"),
    _status(None, "remove"),
    _status(None, "remove"),
    k("label node NODE session=yes"),
    k("label node NODE session-"),
    k("taint node NODE session=yes:PreferNoSchedule"),
    k("taint node NODE session=yes:PreferNoSchedule"),
    k("taint node NODE session-"),
    k("cordon NODE"),
    k("get node NODE"),
    k("uncordon NODE"),
    k("get node nope"),
    # The rest
    k("auth can-i create pods"),
    k("top node"),
    k("top pod"),
    k("rollout restart pod/good"),
    k("get deployments"),
    k("get --raw /api/v1/namespaces/session/pods?limit=x"),
    k("get --raw /nope"),
    k("get --raw /healthz"),
    k("explain pod.spec.nodeName", differs="explain"),
    k("delete configmap settings"),
    k("delete configmap settings"),
    k("delete configmap settings --ignore-not-found"),
    k("delete pod good"),
    k("get pods"),
    k("delete namespace default"),
    k("delete namespace session"),
    k("get namespace session"),
]

_ALIKE = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "TIME"),
    (re.compile(r"\(\d+%\)"), "(PART)"),
    (re.compile(r"\bv1\.\d+\.\d+\b"), "RELEASE"),
    (re.compile(r'(?<=resourceVersion: )"\d+"'), '"VERSION"'),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "ADDRESS"),
    (re.compile(r"(?<![\w./])(\d+[dhms])+(?![\w./:])"), "AGE"),
    (re.compile(r"  +"), "  "),  # columns are as wide as what is in them
]


# A kubelet never forgets a resource: those of other tests are on the real node, with their counts.
_OTHERS = re.compile(rf"^ +(?!{NAMESPACE}/)[\w.-]+/[\w.-]+:? +\d+( +\d+)?$")


def comparable(said: Said, node: str, aside: str = "") -> str:
    """With one word for ages, ids, versions and addresses; every node is called `node`."""
    lines = [line for line in str(said).replace(node, "node").splitlines(keepends=True) if not _OTHERS.match(line)]
    text = "".join(line for line in lines if not aside or not re.search(aside, line))
    for pattern, word in _ALIKE:
        text = pattern.sub(word, text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    # A kubelet may write a status again while it is watched, with nothing in it that is printed.
    return re.sub(r"^(?:ADDED|MODIFIED)( .*\n)(?:MODIFIED\1)+", r"ADDED\1", text, flags=re.MULTILINE)
