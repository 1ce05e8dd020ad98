"""Cleans up after `helm uninstall`: first the resources on the nodes, then the rights needed to remove them.

The chart leaves a CronJob, which runs this in the daemon's own image until it succeeds or its time is over. Its
account can read and delete its own objects, and patch those that grant it rights; it cannot create or change anything
that runs. No account can delete both its right to delete and the binding that grants it. So bindings are owned by their
roles, and the objects in the namespace by the account, and the garbage collector deletes what remains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from plugwright.errors import PeerRefused
from plugwright.extended_resources import removal, survey
from plugwright.extended_resources.changes import ChangeContext, ChangeOptions, ChangeTarget, Clock
from plugwright.extended_resources.client import ClusterNodes
from plugwright.kube.api_client import BlockingClient

__all__ = ["Release", "clean_up"]

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_NOT_FOUND = "NotFound"
_GONE = (_NOT_FOUND, "Forbidden")  # the right to read it may be deleted too

ReportChange = Callable[[ChangeTarget, str], None]


class _Reinstalled(Exception):
    """A DaemonSet of the release exists again, so its resources must stay."""


@dataclass(frozen=True, slots=True)
class Release:
    """Names of the objects of a release; `resources` are names and patterns, never empty."""

    namespace: str
    name: str
    cluster_role: str
    daemon_sets: Sequence[str]
    resources: Sequence[str]
    give_up_after: float  # seconds since the uninstall

    @property
    def cron_job(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/cronjobs/{self.name}"


def clean_up(client: BlockingClient, release: Release, report: ReportChange, clock: Clock | None = None) -> bool:
    """Whether everything is done; if not, call it again."""
    cron_job = _found(client, release.cron_job)
    if cron_job is None:  # an earlier call removed it, and ended before it had removed the rest
        _leave(client, release)
        return True
    try:
        removed = _remove(client, release, report, clock or Clock())
    except _Reinstalled:
        removed = True
    since = datetime.fromisoformat(cron_job["metadata"]["creationTimestamp"])
    if removed or (datetime.now(UTC) - since).total_seconds() >= release.give_up_after:
        _leave(client, release)
        return True
    return False


def _remove(client: BlockingClient, release: Release, report: ReportChange, clock: Clock) -> bool:
    def sleep(seconds: float) -> None:
        for name in release.daemon_sets:
            path = f"/apis/apps/v1/namespaces/{release.namespace}/daemonsets/{name}"
            found = _found(client, path)
            if found is not None and not found["metadata"].get("deletionTimestamp"):
                raise _Reinstalled
        clock.sleep(seconds)

    api = ClusterNodes(client)
    options = ChangeOptions(stale=True, wait=True)
    nodes = survey.nodes_named(api, ())
    cluster_context = survey.cluster_context(api, nodes)
    context = ChangeContext(api, cluster_context, Clock(clock.now, sleep), report)
    targets = survey.find_stale(nodes, cluster_context(), options, release.resources)
    sleep(0.0)
    outcomes = removal.remove(context, targets, options)
    for outcome in outcomes:
        report(outcome.target, f"{outcome.result}: {outcome.detail}")
    return not any(outcome.result.failed for outcome in outcomes)


def _leave(client: BlockingClient, release: Release) -> None:
    """Removes the CronJob without the Job we run in, then the rights in the cluster, last those in the namespace."""
    _delete(client, release.cron_job, "Orphan")
    roles, bindings = f"{_RBAC}/clusterroles", f"{_RBAC}/clusterrolebindings"
    role = _found(client, f"{roles}/{release.cluster_role}", _GONE)
    if role is not None:
        _give(client, f"{bindings}/{release.cluster_role}", _owner("rbac.authorization.k8s.io/v1", "ClusterRole", role))
        _delete(client, f"{roles}/{release.cluster_role}", "Background")
    accounts = f"/api/v1/namespaces/{release.namespace}/serviceaccounts/{release.name}"
    account = _found(client, accounts, _GONE)
    if account is not None:
        for kind in ("rolebindings", "roles"):
            path = f"{_RBAC}/namespaces/{release.namespace}/{kind}/{release.name}"
            _give(client, path, _owner("v1", "ServiceAccount", account))
        _delete(client, accounts, "Background")


def _owner(version: str, kind: str, found: Any) -> dict[str, str]:
    metadata = found["metadata"]
    return {"apiVersion": version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}


def _give(client: BlockingClient, path: str, owner: dict[str, str]) -> None:
    client.patch(path, {"metadata": {"ownerReferences": [owner]}}, "merge-patch")


def _delete(client: BlockingClient, path: str, propagation: str) -> None:
    try:
        client.delete(path, propagation)
    except PeerRefused as error:
        if error.code not in _GONE:
            raise


def _found(client: BlockingClient, path: str, absent: Sequence[str] = (_NOT_FOUND,)) -> Any:
    try:
        return client.get(path)
    except PeerRefused as error:
        if error.code not in absent:
            raise
        return None
