"""The Job controller: pods until enough have succeeded or too many failed, indexes, deadlines, end of Jobs.

Pods are counted as long as they exist: a pod deleted after it has finished is not counted again.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import JOBS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.controllers.owned_objects import OwnedObjects, condition, is_active, is_ready
from plugwright.cluster.controllers.workload_controller import WorkloadController
from plugwright.cluster.events import ClusterClient, EventRecord
from plugwright.errors import NotFound

__all__ = ["JobController", "has_finished"]

_INDEX = "batch.kubernetes.io/job-completion-index"
_RETRY = timedelta(seconds=10)  # until refused pods are created again
_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 10.0, 360.0  # seconds after a failed pod
_FINISHED = ("Complete", "Failed")


class JobController(WorkloadController):
    def __init__(self, client: ClusterClient) -> None:
        self._pods = OwnedObjects(client, JOBS, "job-controller")
        super().__init__(client, JOBS, self._pods)

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        spec, status, now = owner["spec"], owner.get("status") or {}, self._client.now()
        if has_finished(owner):
            return self._expire(owner)
        pods = self._pods.of(owner)
        active = [pod for pod in pods if is_active(pod)]
        succeeded, failed = _in_phase(pods, "Succeeded"), _in_phase(pods, "Failed")
        if spec["suspend"]:
            for pod in active:
                self._pods.delete(owner, pod)
            suspended = _condition("Suspended", "True", "JobSuspended", "Job suspended")
            self._write(owner, pods, {"startTime": None}, [suspended])
            return None
        started = clock.parse(status["startTime"]) if status.get("startTime") else now
        changes: Object = {"startTime": clock.timestamp(started)}
        if failure := _failure(owner, active, len(failed), now - started):
            self._finish(owner, active, changes, failure)
            return self._expire(self._client.store.require(key))
        if _is_complete(owner, succeeded, active):
            done = _condition("Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")
            self._finish(owner, active, {**changes, "completionTime": self._client.stamp()}, done)
            return self._expire(self._client.store.require(key))
        due = self._run(owner, active, succeeded, failed)
        resumed = [_condition("Suspended", "False", "JobResumed", "Job resumed")] if _holds(owner, "Suspended") else []
        self._write(owner, self._pods.of(owner), changes, resumed)
        if (deadline := spec.get("activeDeadlineSeconds")) is not None:
            due = min(due or datetime.max.replace(tzinfo=now.tzinfo), started + timedelta(seconds=deadline))
        return due

    def _run(
        self, owner: Object, active: list[Object], succeeded: list[Object], failed: list[Object]
    ) -> datetime | None:
        """Creates and deletes pods until as many run as the Job requires; returns when to try again."""
        spec, now = owner["spec"], self._client.now()
        wanted = spec["parallelism"]
        if spec.get("completions") is not None:
            wanted = min(wanted, spec["completions"] - len(_distinct(owner, succeeded)))
        elif succeeded:  # an empty work queue
            wanted = len(active)
        for pod in active[max(0, wanted) :]:
            self._pods.delete(owner, pod)
        terminating = sum(bool(pod["metadata"].get("deletionTimestamp")) for pod in self._pods.of(owner))
        if len(active) + terminating >= wanted:
            return None
        if (retry := _back_off(failed)) is not None and retry > now:
            return retry
        indexes = _free_indexes(owner, active, succeeded)
        for _ in range(wanted - len(active) - terminating):
            if self._pods.create(owner, _pod_content(owner, next(indexes, None))) is None:
                return now + _RETRY
        return None

    def _finish(self, owner: Object, active: list[Object], changes: Object, last: Object) -> None:
        for pod in active:
            self._pods.delete(owner, pod)
        if last["type"] == "Complete":
            first = {**last, "type": "SuccessCriteriaMet"}
            event = EventRecord("Completed", "Job completed")
        else:
            first = {**last, "type": "FailureTarget"}
            event = EventRecord(last["reason"], last["message"], "Warning")
        self._pods.record(owner, event)
        self._write(owner, [pod for pod in self._pods.of(owner) if not is_active(pod)], changes, [first, last])

    def _write(self, owner: Object, pods: list[Object], changes: Object, conditions: list[Object]) -> None:
        before = owner.get("status") or {}
        succeeded, active = _in_phase(pods, "Succeeded"), [pod for pod in pods if is_active(pod)]
        counts = {
            "active": len(active),
            "failed": max(len(_in_phase(pods, "Failed")), int(before.get("failed") or 0)),
            "succeeded": max(len(_distinct(owner, succeeded)), int(before.get("succeeded") or 0)),
        }
        kept: list[Object] = list(before.get("conditions") or ())
        for new in conditions:
            kept = condition({"conditions": kept}, new, self._client.stamp())
        status: Object = {
            **{name: before[name] for name in ("startTime", "completionTime") if name in before},
            **changes,
            **{name: count for name, count in counts.items() if count},
            "ready": sum(map(is_ready, active)),
            "terminating": sum(bool(pod["metadata"].get("deletionTimestamp")) for pod in pods),
            "uncountedTerminatedPods": {},
            **({"conditions": kept} if kept else {}),
        }
        if owner["spec"]["completionMode"] == "Indexed":
            status["completedIndexes"] = _as_ranges(sorted({_index(pod) or 0 for pod in succeeded}))
        self._pods.write_status(owner, {name: value for name, value in status.items() if value not in (None, "")})

    def _expire(self, owner: Object) -> datetime | None:
        """Deletes a finished Job after its `ttlSecondsAfterFinished`."""
        seconds = owner["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        conditions = (owner.get("status") or {}).get("conditions") or ()
        since = min(one["lastTransitionTime"] for one in conditions if one["type"] in _FINISHED)
        due = clock.parse(since) + timedelta(seconds=seconds)
        if due > self._client.now():
            return due
        metadata = owner["metadata"]
        path = ResourcePath(JOBS, metadata["namespace"], metadata["name"])
        options = DeleteOptions(uid=metadata["uid"], propagation="Foreground")
        try:
            self._client.writer.delete(path, options)
        except NotFound:
            return None
        return None


def has_finished(job: Object) -> bool:
    return any(_holds(job, name) for name in _FINISHED)


def _holds(job: Object, name: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] == name and one["status"] == "True" for one in conditions)


def _condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _in_phase(pods: list[Object], phase: str) -> list[Object]:
    return [pod for pod in pods if (pod.get("status") or {}).get("phase") == phase]


def _failure(owner: Object, active: list[Object], failed: int, elapsed: timedelta) -> Object | None:
    """Why the Job has failed; restarted containers count with the failed pods."""
    spec = owner["spec"]
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and elapsed >= timedelta(seconds=deadline):
        return _condition("Failed", "True", "DeadlineExceeded", "Job was active longer than specified deadline")
    if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
        failed += sum(_restarts(pod) for pod in active)
    if failed > spec["backoffLimit"]:
        return _condition("Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    return None


def _restarts(pod: Object) -> int:
    status = pod.get("status") or {}
    parts = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return sum(int(part.get("restartCount") or 0) for part in parts)


def _is_complete(owner: Object, succeeded: list[Object], active: list[Object]) -> bool:
    completions = owner["spec"].get("completions")
    if completions is None:
        return bool(succeeded) and not active
    return len(_distinct(owner, succeeded)) >= int(completions)


def _distinct(owner: Object, pods: list[Object]) -> set[object]:
    """One entry for each completion: the indexes, or the pods."""
    if owner["spec"]["completionMode"] == "Indexed":
        return {index for pod in pods if (index := _index(pod)) is not None}
    return {pod["metadata"]["uid"] for pod in pods}


def _index(pod: Object) -> int | None:
    text = str((pod["metadata"].get("annotations") or {}).get(_INDEX) or "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _free_indexes(owner: Object, active: list[Object], succeeded: list[Object]) -> Iterator[int]:
    if owner["spec"]["completionMode"] != "Indexed":
        return iter(())
    used = {_index(pod) for pod in (*active, *succeeded)}
    return (number for number in range(owner["spec"]["completions"]) if number not in used)


def _pod_content(owner: Object, index: int | None) -> Object:
    template: Object = owner["spec"]["template"]
    if index is None:
        return template
    metadata, spec = template.get("metadata") or {}, template["spec"]
    own = {_INDEX: str(index)}
    variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
    containers = [{**one, "env": [*(one.get("env") or []), variable]} for one in spec["containers"]]
    return {
        "metadata": {
            **metadata,
            "annotations": {**(metadata.get("annotations") or {}), **own},
            "labels": {**(metadata.get("labels") or {}), **own},
        },
        "spec": {**spec, "containers": containers},
    }


def _back_off(failed: list[Object]) -> datetime | None:
    """When the next pod can start after failures: 10 s after the first, doubled each time."""
    if not failed:
        return None
    seconds = min(_FIRST_BACK_OFF * 2 ** min(len(failed) - 1, 10), _LONGEST_BACK_OFF)
    return max(map(_end, failed)) + timedelta(seconds=seconds)


def _end(pod: Object) -> datetime:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = [((one.get("state") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    return clock.parse(str(max((end for end in ends if end), default=pod["metadata"]["creationTimestamp"])))


def _as_ranges(indexes: list[int]) -> str:
    """Ranges such as `0-2,4`."""
    parts: list[list[int]] = []
    for number in indexes:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
