"""Jobs and CronJobs: defaults, rules and columns. `cluster.controllers` runs them."""

from collections.abc import Iterator
from datetime import datetime

from plugwright.apiserver import clock, cron
from plugwright.apiserver.kinds import pod_templates
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.pod_templates import TEMPLATE_COLUMNS, with_generation, with_template_defaults
from plugwright.apiserver.pod_fields import ADVICE
from plugwright.apiserver.printers import AGE, NAME, Column, age
from plugwright.apiserver.store import Object, ObjectLookup
from plugwright.apiserver.validation import FieldError, dns_label_errors, invalid, required, unsupported
from plugwright.errors import InvalidValue

__all__ = ["CRON_JOBS", "JOBS", "NOT_EMULATED_IN_JOBS"]

_GROUP = "batch"
_UID_LABEL, _NAME_LABEL = "controller-uid", "job-name"
_PREFIX = "batch.kubernetes.io/"
_POLICIES = ("OnFailure", "Never")
_COUNTS = (
    "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
)  # fmt: skip
_CONCURRENCY = ("Allow", "Forbid", "Replace")
_LONGEST_CRON_NAME = 52  # the names of its jobs are 11 characters longer
NOT_EMULATED_IN_JOBS = {
    "backoffLimitPerIndex": "failures are counted for the whole Job",
    "managedBy": "there is no other controller",
    "manualSelector": "every Job selects the pods that it has made",
    "podFailurePolicy": "every failed pod counts",
    "successPolicy": "a Job succeeds with all of its completions",
}


def _job_spec_with_defaults(given: Object) -> Object:
    """The defaults. A Job with a `parallelism` but no `completions` is a work queue: one success is enough."""
    counts = {} if "completions" in given or "parallelism" in given else {"completions": 1}
    defaults: Object = {
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    return with_template_defaults({**defaults, **counts, **given})


def _prepare_job(job: Object) -> Object:
    """Generates the labels and the selector that only this Job has."""
    spec, metadata = _job_spec_with_defaults(job.get("spec") or {}), job["metadata"]
    uid, name = metadata["uid"], metadata.get("name", "")
    own = {f"{_PREFIX}{_UID_LABEL}": uid}
    names = {f"{_PREFIX}{_NAME_LABEL}": name, _UID_LABEL: uid, _NAME_LABEL: name}
    template = spec["template"]
    inner = template.get("metadata") or {}
    labels = {**(inner.get("labels") or {}), **own, **names}
    spec |= {"selector": {"matchLabels": own}, "template": {**template, "metadata": {**inner, "labels": labels}}}
    return with_generation(None, {**job, "spec": spec})


def _update_job(before: Object, after: Object) -> Object:
    return with_generation(before, {**after, "spec": _job_spec_with_defaults(after.get("spec") or {})})


def _job_errors(spec: Object, field: str = "spec") -> Iterator[FieldError]:
    for error in pod_templates.count_errors(spec, *_COUNTS):
        yield FieldError(error.field.replace("spec", field, 1), error.message, error.reason)
    yield from unsupported(f"{field}.completionMode", spec["completionMode"], ("NonIndexed", "Indexed"))
    if spec["completionMode"] == "Indexed" and spec.get("completions") is None:
        yield required(f"{field}.completions", "when completion mode is Indexed")
    yield from pod_templates.template_errors(spec["template"], f"{field}.template", _POLICIES)


def _validate_job_update(before: Object, after: Object) -> Iterator[FieldError]:
    names = ["selector", "completionMode"]
    if before["spec"]["completionMode"] == "NonIndexed":
        names.append("completions")
    if not before["spec"].get("suspend"):
        names.append("template")
    yield from pod_templates.immutable_errors(before, after, *names)


def _refusal(spec: Object) -> str | None:
    asked = [name for name in NOT_EMULATED_IN_JOBS if spec.get(name)]
    return f"plugwright does not emulate {', '.join(asked)}; {ADVICE}" if asked else None


def _admit_job(job: Object, _objects: ObjectLookup) -> str | None:
    return _refusal(job["spec"])


def _cron_job_with_defaults(cron_job: Object) -> Object:
    defaults: Object = {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    }
    spec = {**defaults, **(cron_job.get("spec") or {})}
    template = spec.get("jobTemplate") or {}
    job_spec = _job_spec_with_defaults(template.get("spec") or {})
    return {**cron_job, "spec": {**spec, "jobTemplate": {**template, "spec": job_spec}}}


def _validate_cron_job(cron_job: Object) -> Iterator[FieldError]:
    spec, name = cron_job["spec"], str(cron_job["metadata"].get("name") or "")
    if len(name) > _LONGEST_CRON_NAME:
        yield invalid("metadata.name", name, f"must be no more than {_LONGEST_CRON_NAME} characters")
    if not spec.get("schedule"):
        yield required("spec.schedule")
    else:
        try:
            cron.Schedule.parse(spec["schedule"])
        except InvalidValue as error:
            yield invalid("spec.schedule", spec["schedule"], str(error))
    if spec.get("timeZone") is not None and cron.time_zone(spec["timeZone"]) is None:
        yield invalid("spec.timeZone", spec["timeZone"], f"unknown time zone {spec['timeZone']}")
    yield from unsupported("spec.concurrencyPolicy", spec["concurrencyPolicy"], _CONCURRENCY)
    limits = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    yield from pod_templates.count_errors(spec, *limits)
    yield from _job_errors(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _admit_cron_job(cron_job: Object, _objects: ObjectLookup) -> str | None:
    return _refusal(cron_job["spec"]["jobTemplate"]["spec"])


def _completions(job: Object, _now: datetime) -> str:
    spec, done = job["spec"], int((job.get("status") or {}).get("succeeded") or 0)
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    return f"{done}/1 of {spec['parallelism']}" if spec["parallelism"] > 1 else f"{done}/1"


def _state(job: Object, _now: datetime) -> str:
    conditions = (job.get("status") or {}).get("conditions") or []
    holding = {condition["type"] for condition in conditions if condition["status"] == "True"}
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((name for name in ("Complete", "Failed", "Suspended") if name in holding), "Running")


def _duration(job: Object, now: datetime) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    return age(status["startTime"], clock.parse(status["completionTime"]) if status.get("completionTime") else now)


def _last_schedule(cron_job: Object, now: datetime) -> str:
    last = (cron_job.get("status") or {}).get("lastScheduleTime")
    return age(last, now) if last else "<none>"


JOBS = Kind(
    plural="jobs",
    name="Job",
    group=_GROUP,
    categories=("all",),
    has_status=True,
    prepare_for_create=_prepare_job,
    prepare_for_update=_update_job,
    admit=_admit_job,
    name_errors=dns_label_errors,
    validate=lambda job: _job_errors(job["spec"]),
    validate_update=_validate_job_update,
    columns=(
        NAME,
        Column("Status", _state),
        Column("Completions", _completions),
        Column("Duration", _duration),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)

CRON_JOBS = Kind(
    plural="cronjobs",
    name="CronJob",
    group=_GROUP,
    short_names=("cj",),
    categories=("all",),
    has_status=True,
    prepare_for_create=lambda content: with_generation(None, _cron_job_with_defaults(content)),
    prepare_for_update=lambda before, after: with_generation(before, _cron_job_with_defaults(after)),
    admit=_admit_cron_job,
    validate=_validate_cron_job,
    columns=(
        NAME,
        Column("Schedule", lambda content, _: content["spec"]["schedule"]),
        Column("Timezone", lambda content, _: content["spec"].get("timeZone") or "<none>"),
        Column("Suspend", lambda content, _: str(bool(content["spec"].get("suspend")))),
        Column("Active", lambda content, _: len((content.get("status") or {}).get("active") or []), type="integer"),
        Column("Last Schedule", _last_schedule),
        AGE,
    ),
)
