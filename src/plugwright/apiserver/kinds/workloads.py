"""Deployments, ReplicaSets and DaemonSets: defaults, rules, columns. `cluster.controllers` creates their pods."""

from collections.abc import Iterator

from plugwright.apiserver.kinds import pod_templates
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.pod_templates import TEMPLATE_COLUMNS, with_generation, with_template_defaults
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, forbidden, invalid, unsupported

__all__ = ["DAEMON_SETS", "DEPLOYMENTS", "REPLICA_SETS"]

_GROUP = "apps"
_STRATEGIES = ("Recreate", "RollingUpdate")
_UPDATE_STRATEGIES = ("OnDelete", "RollingUpdate")
_SURGE = {"maxUnavailable": "25%", "maxSurge": "25%"}


def _with_strategy(spec: Object, name: str, rolling: Object) -> Object:
    """The strategy of updates, with limits for a rolling one."""
    strategy = {"type": "RollingUpdate", **{key: value for key, value in (spec.get(name) or {}).items() if value}}
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = {**rolling, **(strategy.get("rollingUpdate") or {})}
    return {**spec, name: strategy}


def _deployment_with_defaults(deployment: Object) -> Object:
    defaults = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    spec = {**defaults, **(deployment.get("spec") or {})}
    return {**deployment, "spec": _with_strategy(with_template_defaults(spec), "strategy", _SURGE)}


def _replica_set_with_defaults(replica_set: Object) -> Object:
    spec = {"replicas": 1, **(replica_set.get("spec") or {})}
    return {**replica_set, "spec": with_template_defaults(spec)}


def _daemon_set_with_defaults(daemon_set: Object) -> Object:
    spec = with_template_defaults({"revisionHistoryLimit": 10, **(daemon_set.get("spec") or {})})
    return {**daemon_set, "spec": _with_strategy(spec, "updateStrategy", {"maxUnavailable": 1, "maxSurge": 0})}


def _validate(content: Object) -> Iterator[FieldError]:
    spec = content["spec"]
    yield from pod_templates.count_errors(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    yield from pod_templates.selector_errors(spec)
    yield from pod_templates.template_errors(spec["template"], "spec.template", ("Always",))


def _validate_deployment(deployment: Object) -> Iterator[FieldError]:
    yield from _validate(deployment)
    spec, strategy = deployment["spec"], deployment["spec"]["strategy"]
    yield from unsupported("spec.strategy.type", strategy["type"], _STRATEGIES)
    if strategy["type"] == "Recreate" and strategy.get("rollingUpdate"):
        text = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden("spec.strategy.rollingUpdate", text)
    yield from _limit_errors("spec.strategy.rollingUpdate", strategy.get("rollingUpdate") or {})
    if spec["progressDeadlineSeconds"] <= (spec.get("minReadySeconds") or 0):
        text = "must be greater than minReadySeconds"
        yield invalid("spec.progressDeadlineSeconds", spec["progressDeadlineSeconds"], text)


def _validate_daemon_set(daemon_set: Object) -> Iterator[FieldError]:
    yield from _validate(daemon_set)
    strategy = daemon_set["spec"]["updateStrategy"]
    yield from unsupported("spec.updateStrategy.type", strategy["type"], _UPDATE_STRATEGIES)
    yield from _limit_errors("spec.updateStrategy.rollingUpdate", strategy.get("rollingUpdate") or {})


def _limit_errors(field: str, limits: Object) -> Iterator[FieldError]:
    for name, value in limits.items():
        digits = value.removesuffix("%") if isinstance(value, str) else str(value)
        if not digits.isdecimal() or len(digits) > 9 or (isinstance(value, str) and not value.endswith("%")):
            yield invalid(f"{field}.{name}", value, "must be an integer or percentage (e.g '5%')")
    if limits and all(str(value) in ("0", "0%") for value in limits.values()):
        yield invalid(f"{field}.maxUnavailable", limits["maxUnavailable"], "may not be 0 when `maxSurge` is 0")


def _validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    yield from pod_templates.immutable_errors(before, after, "selector")


def _status(content: Object, name: str) -> int:
    return int((content.get("status") or {}).get(name) or 0)


def _count(title: str, name: str) -> Column:
    return Column(title, lambda content, _: _status(content, name), type="integer")


def _node_selector(daemon_set: Object) -> str:
    labels = daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


DEPLOYMENTS = Kind(
    plural="deployments",
    name="Deployment",
    group=_GROUP,
    short_names=("deploy",),
    categories=("all",),
    has_status=True,
    subresources=("scale",),
    prepare_for_create=lambda content: with_generation(None, _deployment_with_defaults(content)),
    prepare_for_update=lambda before, after: with_generation(before, _deployment_with_defaults(after)),
    validate=_validate_deployment,
    validate_update=_validate_update,
    columns=(
        NAME,
        Column("Ready", lambda content, _: f"{_status(content, 'readyReplicas')}/{content['spec']['replicas']}"),
        _count("Up-to-date", "updatedReplicas"),
        _count("Available", "availableReplicas"),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)

REPLICA_SETS = Kind(
    plural="replicasets",
    name="ReplicaSet",
    group=_GROUP,
    short_names=("rs",),
    categories=("all",),
    has_status=True,
    subresources=("scale",),
    prepare_for_create=lambda content: with_generation(None, _replica_set_with_defaults(content)),
    prepare_for_update=lambda before, after: with_generation(before, _replica_set_with_defaults(after)),
    validate=_validate,
    validate_update=_validate_update,
    columns=(
        NAME,
        Column("Desired", lambda content, _: content["spec"]["replicas"], type="integer"),
        _count("Current", "replicas"),
        _count("Ready", "readyReplicas"),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields=frozenset({"status.replicas"}),
)

DAEMON_SETS = Kind(
    plural="daemonsets",
    name="DaemonSet",
    group=_GROUP,
    short_names=("ds",),
    categories=("all",),
    has_status=True,
    prepare_for_create=lambda content: with_generation(None, _daemon_set_with_defaults(content)),
    prepare_for_update=lambda before, after: with_generation(before, _daemon_set_with_defaults(after)),
    validate=_validate_daemon_set,
    validate_update=_validate_update,
    columns=(
        NAME,
        _count("Desired", "desiredNumberScheduled"),
        _count("Current", "currentNumberScheduled"),
        _count("Ready", "numberReady"),
        _count("Up-to-date", "updatedNumberScheduled"),
        _count("Available", "numberAvailable"),
        Column("Node Selector", lambda content, _: _node_selector(content)),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)
