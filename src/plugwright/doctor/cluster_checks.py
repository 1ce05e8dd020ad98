"""A node as the API server shows it, for `doctor NODE`: its Node object, the pod of its daemon, and its clock.

The caller reads the objects into a `ClusterView`; every check is a function of it. The checks find problems that
the daemon cannot report, such as a missing daemon.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from plugwright.doctor.doctor_report import DoctorCheck, DoctorMetadata, DoctorReport, found, healthy, not_checked
from plugwright.kube.remote_daemon import DAEMON_CONTAINER
from plugwright.model import some
from plugwright.quantity import zero_if_invalid
from plugwright.sdk.node_report import NodeReport, ResourceReport
from plugwright.version import __version__

__all__ = ["CLUSTER_CHECKS", "ClusterView", "report_without_daemon", "with_cluster_checks"]

CLUSTER_CHECKS = ("node", "kubelet-version", "daemon-pod", "allocatable", "node-clock")
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_OLDEST = (1, 28)  # kubelet that gives containers the CDI devices of a plugin
_SETTLED = timedelta(minutes=2)  # after which a Node object must show a change
_SKEW = 60.0  # seconds
_MANY_RESTARTS, _RECENTLY = 3, timedelta(minutes=15)
Json = Mapping[str, Any]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """`node` is None if it cannot be read, and `problem` says why; `served` is None if no daemon has answered."""

    name: str
    node: Json | None
    problem: str = ""
    pods: Sequence[Json] = ()  # of daemons on the node, running or not
    served: NodeReport | None = None
    now: datetime


def with_cluster_checks(report: DoctorReport, view: ClusterView) -> DoctorReport:
    """The report of the daemon's pod, preceded by the checks of the API server's objects."""
    return _with_checks(report, (*_api_checks(view), _clock(view, report), *report.checks))


def report_without_daemon(view: ClusterView) -> DoctorReport:
    """For a node on which no daemon can be reached."""
    metadata = DoctorMetadata(node_name=view.name, version=__version__, root="/", in_pod=True, generated_at=view.now)
    return _with_checks(DoctorReport(metadata=metadata, result="unknown"), _api_checks(view))


def _api_checks(view: ClusterView) -> tuple[DoctorCheck, ...]:
    return _node(view), _kubelet_version(view), _daemon_pod(view), _allocatable(view)


def _with_checks(report: DoctorReport, checks: tuple[DoctorCheck, ...]) -> DoctorReport:
    seen = {check.state for check in checks}
    result = "findings" if "finding" in seen else "healthy" if "ok" in seen else "unknown"
    return replace(report, checks=checks, result=result)


def _node(view: ClusterView) -> DoctorCheck:
    name, fix = "node", f"kubectl describe node {shlex.quote(view.name)}; on the node: "
    if view.node is None:
        return not_checked(name, view.problem)
    conditions = {each.get("type"): each for each in _status(view.node).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    if ready.get("status") != "True":
        text = f"{view.name} is not Ready: {ready.get('reason')}: {ready.get('message')}"
        why = "the scheduler sends it no pods, and evicts those that run there after five minutes"
        return found(name, text, why, f"{fix}systemctl status kubelet; journalctl -u kubelet -n 50")
    for pressure in _PRESSURES:
        condition = conditions.get(pressure) or {}
        if condition.get("status") == "True":
            text = f"{view.name} has {pressure}: {condition.get('message')}"
            return found(name, text, "the kubelet refuses new pods and evicts others", f"{fix}df -h; free -m")
    spec = view.node.get("spec") or {}
    kept = "; kubectl cordon keeps new pods away" if spec.get("unschedulable") else ""
    taints = [f"{taint.get('key')}:{taint.get('effect')}" for taint in spec.get("taints") or ()]
    return healthy(name, f"Ready{kept}{f'; taints: {some(taints)}' if taints else ''}")


def _kubelet_version(view: ClusterView) -> DoctorCheck:
    name = "kubelet-version"
    if view.node is None:
        return not_checked(name, view.problem)
    version = str((_status(view.node).get("nodeInfo") or {}).get("kubeletVersion") or "")
    match = re.match(r"v(\d{1,3})\.(\d{1,3})", version)
    if match is None:
        return not_checked(name, f"the Node has no version of its kubelet, got {version!r}")
    if (int(match[1]), int(match[2])) < _OLDEST:
        text = f"the kubelet is {version}, and plugwright needs v{_OLDEST[0]}.{_OLDEST[1]} or newer"
        return found(name, text, "CDI names are ignored: containers start without their devices", "update the kubelet")
    return healthy(name, version)


def _daemon_pod(view: ClusterView) -> DoctorCheck:
    name, why = "daemon-pod", "no resource of plugwright is served on this node"
    for pod in view.pods:
        if problem := _pod_problem(pod, view.now):
            metadata = pod.get("metadata") or {}
            place = f"-n {shlex.quote(str(metadata.get('namespace')))} {shlex.quote(str(metadata.get('name')))}"
            fix = f"kubectl describe pod {place}; kubectl logs {place} -c {DAEMON_CONTAINER} --previous"
            return found(name, f"{_pod_name(pod)} {problem}", why, fix)
    if not view.pods:
        return found(
            name,
            f"no daemon's pod is on {view.name}",
            why,
            f"kubectl get ds -A -l app.kubernetes.io/name=plugwright; kubectl describe node {shlex.quote(view.name)}: "
            "compare its labels and taints with nodeSelector, affinity and tolerations of the chart",
        )
    return healthy(name, f"{some(map(_pod_name, view.pods))} runs")


def _pod_name(pod: Json) -> str:
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def _pod_problem(pod: Json, now: datetime) -> str:
    """Why a daemon's pod does not run; empty if it does."""
    status, metadata = _status(pod), pod.get("metadata") or {}
    if (deleted := _moment(metadata.get("deletionTimestamp"))) and now - deleted > _SETTLED:
        return f"should have ended at {metadata['deletionTimestamp']}: its container or its node hangs"
    containers = [each for each in status.get("containerStatuses") or () if each.get("name") == DAEMON_CONTAINER]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            last = (container.get("lastState") or {}).get("terminated") or {}
            lines = str(last.get("message") or "").strip().splitlines()
            ended = (
                f"; its last run ended with code {last.get('exitCode')}: {lines[-1] if lines else ''}" if last else ""
            )
            return f"waits: {waiting.get('reason')}: {waiting.get('message') or ''}{ended}"
    for container in containers:
        last, restarts = (container.get("lastState") or {}).get("terminated") or {}, container.get("restartCount") or 0
        finished = _moment(last.get("finishedAt"))
        if restarts >= _MANY_RESTARTS and finished and now - finished < _RECENTLY:
            return f"was restarted {restarts} times, last with code {last.get('exitCode')}: {last.get('reason')}"
    if status.get("phase") == "Running":
        return ""
    causes = [each for each in status.get("conditions") or () if each.get("status") == "False" and each.get("message")]
    reason = status.get("message") or (causes[0].get("message") if causes else status.get("reason") or "")
    return f"is {status.get('phase')}: {reason}"


def _moment(text: Any) -> datetime | None:
    """A time of an object; None if there is none."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError):
        return None


def _allocatable(view: ClusterView) -> DoctorCheck:
    """Whether the Node's allocatable number matches the daemon's healthy devices, once both are stable."""
    name = "allocatable"
    if view.node is None or view.served is None:
        return not_checked(name, view.problem or "the daemon did not report what it serves")
    counts: Json = _status(view.node).get("allocatable") or {}
    problems = [text for resource in view.served.resources for text in _wrong_count(resource, counts, view.now)]
    if problems:
        why = "the scheduler uses a wrong number of devices: pods stay Pending, or the kubelet refuses them"
        fix = f"kubectl describe node {shlex.quote(view.name)}; on the node: systemctl restart kubelet"
        return found(name, some(problems), why, fix)
    return healthy(name, f"the Node has the devices of {len(view.served.resources)} resources")


def _wrong_count(resource: ResourceReport, counts: Json, now: datetime) -> Iterator[str]:
    if resource.serve != "device-plugin" or resource.state != "registered":
        return  # claims have some of the devices, or the registration is the finding
    if resource.owner or resource.rival or not resource.streams:
        return  # findings of other checks
    devices = [device for device in resource.devices if device.health == "Healthy"]
    changed = [device for device in resource.devices if now - device.since < _SETTLED]
    if now - resource.since < _SETTLED or changed:
        return
    shown = int(zero_if_invalid(str(counts.get(resource.name, "0"))))
    if shown != len(devices):
        yield f"{resource.name}: allocatable is {shown}, {len(devices)} devices are Healthy"


def _clock(view: ClusterView, report: DoctorReport) -> DoctorCheck:
    """Compares the time of the node's own report with the clock of this machine."""
    name, ahead = "node-clock", (report.metadata.generated_at.astimezone(UTC) - view.now).total_seconds()
    if abs(ahead) > _SKEW:
        return found(
            name,
            f"the clock of {view.name} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
            "one of them is wrong: certificates and leases fail, and the times of cordons and health are wrong",
            "on both: timedatectl set-ntp true; chronyc makestep; date -u",
        )
    return healthy(name, f"agrees with this machine's within {_SKEW:.0f} s")


def _status(document: Json) -> Json:
    status: Json = document.get("status") or {}
    return status
