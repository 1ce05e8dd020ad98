"""The CronJob controller: Jobs by a schedule, and the removal of old Jobs.

If several start times were missed, for example while the cluster was stopped, only the latest is used.
"""

from datetime import datetime, timedelta

from plugwright.apiserver import clock, cron
from plugwright.apiserver.kinds import CRON_JOBS, JOBS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.controllers.job_controller import has_finished
from plugwright.cluster.controllers.owned_objects import OwnedObjects
from plugwright.cluster.controllers.workload_controller import WorkloadController
from plugwright.cluster.events import ClusterClient, EventRecord

__all__ = ["CronJobController"]

_MOST_MISSED = 100  # maximum number of examined start times
_SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"


class CronJobController(WorkloadController):
    def __init__(self, client: ClusterClient) -> None:
        self._jobs = OwnedObjects(client, CRON_JOBS, "cronjob-controller", JOBS)
        super().__init__(client, CRON_JOBS, self._jobs)

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        spec, now = owner["spec"], self._client.now()
        self._delete_old(owner)
        running = [job for job in self._jobs.of(owner) if not has_finished(job)]
        latest, due = (None, None) if spec.get("suspend") else _start_times(owner, now)
        if latest is not None and _is_in_time(spec, latest, now):
            running, latest = self._start(owner, latest, running)
        else:
            latest = None
        self._write_status(owner, running, latest)
        return due

    def _start(self, owner: Object, moment: datetime, running: list[Object]) -> tuple[list[Object], datetime | None]:
        """The Jobs to run now, and their start time."""
        policy = owner["spec"]["concurrencyPolicy"]
        if running and policy == "Forbid":
            text = f"Not starting job because prior execution is running and concurrency policy is {policy}"
            self._jobs.record(owner, EventRecord("JobAlreadyActive", text))
            return running, None
        if policy == "Replace":
            for job in running:
                self._jobs.delete(owner, job)
            running = []
        template = owner["spec"]["jobTemplate"]
        metadata = template.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), _SCHEDULED: clock.timestamp(moment)}
        content = {"metadata": {**metadata, "annotations": annotations}, "spec": template["spec"]}
        name = f"{owner['metadata']['name']}-{int(moment.timestamp()) // 60}"
        created = self._jobs.create(owner, content, name)
        return ([*running, created], moment) if created else (running, moment)

    def _delete_old(self, owner: Object) -> None:
        finished = [job for job in self._jobs.of(owner) if has_finished(job)]
        for is_failed, name in ((False, "successfulJobsHistoryLimit"), (True, "failedJobsHistoryLimit")):
            jobs = [job for job in finished if _has_failed(job) is is_failed]
            for job in jobs[: max(0, len(jobs) - int(owner["spec"][name]))]:
                self._jobs.delete(owner, job)

    def _write_status(self, owner: Object, running: list[Object], latest: datetime | None) -> None:
        before = owner.get("status") or {}
        active = [_reference(job) for job in running]
        ends = [(job.get("status") or {}).get("completionTime") for job in self._jobs.of(owner)]
        last = {
            "lastScheduleTime": clock.timestamp(latest) if latest else before.get("lastScheduleTime"),
            "lastSuccessfulTime": max((end for end in ends if end), default=before.get("lastSuccessfulTime")),
        }
        status = {name: value for name, value in last.items() if value}
        self._jobs.write_status(owner, {**status, **({"active": active} if active else {})})


def _start_times(owner: Object, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The latest unused start time, and the next one."""
    spec, status = owner["spec"], owner.get("status") or {}
    schedule, zone = cron.Schedule.parse(spec["schedule"]), cron.time_zone(spec.get("timeZone") or "UTC")
    since = clock.parse(status.get("lastScheduleTime") or owner["metadata"]["creationTimestamp"])
    if spec.get("startingDeadlineSeconds") is not None:
        since = max(since, now - timedelta(seconds=spec["startingDeadlineSeconds"]))
    latest, upcoming = None, schedule.after(since.astimezone(zone))
    for _ in range(_MOST_MISSED):
        if upcoming is None or upcoming > now:
            return latest, upcoming
        latest, upcoming = upcoming, schedule.after(upcoming)
    return latest, schedule.after(now.astimezone(zone))


def _is_in_time(spec: Object, moment: datetime, now: datetime) -> bool:
    seconds = spec.get("startingDeadlineSeconds")
    return seconds is None or now - moment <= timedelta(seconds=seconds)


def _has_failed(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)


def _reference(job: Object) -> Object:
    metadata = job["metadata"]
    named = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.name, **named}
