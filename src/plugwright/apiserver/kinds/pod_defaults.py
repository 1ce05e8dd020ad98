"""The API server's additions to a pod: defaults, tolerations, the QoS class, and quantities in canonical form.

Values that mean the same as none (an empty list, `hostNetwork: false`) are omitted, as by its encoder, so that `kubectl
diff` finds no difference between this server and a real cluster.
"""

from collections.abc import Mapping
from typing import Any

from plugwright import quantity
from plugwright.apiserver.store import Object

__all__ = ["prepare_for_create", "prepare_for_update", "template_with_defaults"]

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_NOT_READY, _UNREACHABLE = (f"node.kubernetes.io/{condition}" for condition in ("not-ready", "unreachable"))
_FILE_MODE, _TOKEN_SECONDS = 0o644, 3600
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
# Fields whose zero value is not stored; fields with other names keep theirs.
_OMITTED_ZEROS = frozenset(
    {"hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds",
     "readOnly", "stdin", "stdinOnce", "tty"}
)  # fmt: skip
_KEPT_TEXTS = frozenset({"type", "mountPath", "devicePath", "topologyKey", "key", "name", "image", "server", "path"})


def prepare_for_create(pod: Object) -> Object:
    prepared = _with_defaults(pod)
    spec = prepared["spec"]
    account = spec.get("serviceAccountName") or "default"
    spec |= {"serviceAccountName": account, "serviceAccount": account}
    prepared["metadata"]["generation"] = 1
    status: Object = {"phase": "Pending", "qosClass": _qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None,
                "lastTransitionTime": prepared["metadata"].get("creationTimestamp"),
            }
        ]
    return {**prepared, "status": status}


def prepare_for_update(before: Object, after: Object) -> Object:
    """The generation counts the changes of the spec."""
    prepared = _with_defaults(after)
    for name in ("priority", "preemptionPolicy"):
        if name in before["spec"]:
            prepared["spec"].setdefault(name, before["spec"][name])
    is_changed = prepared["spec"] != before["spec"]
    prepared["metadata"]["generation"] = before["metadata"].get("generation", 1) + is_changed
    return prepared


def template_with_defaults(template: Object) -> Object:
    """A workload's template of pods with defaults, but without tolerations, which admission adds to pods only."""
    return {**template, "spec": _spec_with_defaults(template.get("spec") or {})}


def _with_defaults(pod: Object) -> Object:
    spec = _spec_with_defaults(pod.get("spec") or {})
    spec["tolerations"] = _tolerations(spec.get("tolerations") or [])
    return {**pod, "spec": spec}


def _spec_with_defaults(given: Object) -> Object:
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        **_without_empty(given),
    }
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    spec |= {"serviceAccountName": account, "serviceAccount": account} if account else {}
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    for part in _CONTAINER_LISTS:
        if spec.get(part):
            spec[part] = [_container_with_defaults(container, spec) for container in spec[part]]
    if spec.get("volumes"):
        spec["volumes"] = [_volume_with_defaults(volume) for volume in spec["volumes"]]
    if spec.get("resources"):
        spec["resources"] = _pod_resources(spec)
    if spec.get("overhead"):
        spec["overhead"] = _canonical(spec["overhead"])
    return spec


def _without_empty(value: Any) -> Any:  # type: ignore[explicit-any,unused-ignore]
    """The value without unstored lists, maps and zeros; an empty map can be a choice, like `emptyDir: {}`."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {member: _without_empty(inner) for member, inner in value.items() if not _is_omitted(member, inner)}


def _is_omitted(name: str, value: object) -> bool:
    if value == []:
        return True
    if value == "":
        return name not in _KEPT_TEXTS
    return name in _OMITTED_ZEROS and value in (False, 0)


def _tolerations(tolerations: list[Object]) -> list[Object]:
    """Adds tolerations of unreachable nodes for five minutes, unless the pod has its own for them."""

    def tolerates(key: str) -> bool:
        return any(
            toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")
            for toleration in tolerations
        )

    defaults = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in (_NOT_READY, _UNREACHABLE)
        if not tolerates(key)
    ]
    return [*tolerations, *defaults]


def _container_with_defaults(container: Object, spec: Object) -> Object:
    resources = dict(container.get("resources") or {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    completed = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": _pull_policy(str(container.get("image", ""))),
        **container,
        "resources": {part: _canonical(amounts) for part, amounts in resources.items()},
    }
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if completed.get(probe) is not None:
            given = {name: value for name, value in completed[probe].items() if value != 0 or name not in _PROBE}
            completed[probe] = {**_PROBE, **_handler_with_defaults(given)}
    if completed.get("lifecycle"):
        # A stop signal is behind a disabled feature gate: the API server drops it.
        hooks = {name: hook for name, hook in completed["lifecycle"].items() if name != "stopSignal"}
        completed["lifecycle"] = {name: _handler_with_defaults(hook) for name, hook in hooks.items()}
        if not hooks:
            del completed["lifecycle"]
    if completed.get("ports"):
        completed["ports"] = [_port_with_defaults(port, spec) for port in completed["ports"]]
    if completed.get("env"):
        completed["env"] = [_variable_with_defaults(variable) for variable in completed["env"]]
    return completed


def _pull_policy(image: str) -> str:
    is_untagged = ":" not in image.rpartition("/")[2] and "@" not in image
    return "Always" if is_untagged or image.endswith(":latest") else "IfNotPresent"


def _handler_with_defaults(handler: Object) -> Object:
    completed = {**handler}
    if handler.get("httpGet") is not None:
        completed["httpGet"] = {"path": "/", "scheme": "HTTP", **_filled(handler["httpGet"])}
    if handler.get("grpc") is not None:
        completed["grpc"] = {"service": "", **handler["grpc"]}
    return completed


def _filled(members: Object) -> Object:
    return {name: value for name, value in members.items() if value != ""}


def _port_with_defaults(port: Object, spec: Object) -> Object:
    completed = {"protocol": "TCP", **_filled(port)}
    if spec.get("hostNetwork") and not completed.get("hostPort") and completed.get("containerPort"):
        completed["hostPort"] = completed["containerPort"]
    return completed


def _variable_with_defaults(variable: Object) -> Object:
    source = variable.get("valueFrom")
    return variable if not source else {**variable, "valueFrom": _source_with_defaults(source)}


def _source_with_defaults(source: Object) -> Object:
    completed = {**source}
    if source.get("fieldRef") is not None:
        completed["fieldRef"] = {"apiVersion": "v1", **source["fieldRef"]}
    if source.get("resourceFieldRef") is not None:
        reference = {"divisor": "0", **source["resourceFieldRef"]}
        completed["resourceFieldRef"] = {**reference, "divisor": quantity.canonical(reference["divisor"])}
    return completed


def _volume_with_defaults(volume: Object) -> Object:
    completed = {**volume}
    if not {*volume} - {"name"}:
        completed["emptyDir"] = {}
    for source in ("configMap", "downwardAPI", "projected", "secret"):
        if volume.get(source) is not None:
            completed[source] = {"defaultMode": _FILE_MODE, **_files_with_defaults(volume[source])}
    if volume.get("hostPath") is not None:
        completed["hostPath"] = {"type": "", **volume["hostPath"]}
    if (volume.get("emptyDir") or {}).get("sizeLimit") is not None:
        limit = quantity.canonical(volume["emptyDir"]["sizeLimit"])
        completed["emptyDir"] = {**volume["emptyDir"], "sizeLimit": limit}
    if volume.get("image") is not None:
        policy = _pull_policy(str(volume["image"].get("reference", "")))
        completed["image"] = {"pullPolicy": policy, **volume["image"]}
    return completed


def _files_with_defaults(source: Object) -> Object:
    completed = {**source}
    if source.get("items"):
        completed["items"] = [_source_with_defaults(item) for item in source["items"]]
    if source.get("sources"):
        completed["sources"] = [_projection_with_defaults(part) for part in source["sources"]]
    return completed


def _projection_with_defaults(part: Object) -> Object:
    completed = {**part}
    if part.get("downwardAPI") is not None:
        completed["downwardAPI"] = _files_with_defaults(part["downwardAPI"])
    if part.get("serviceAccountToken") is not None:
        completed["serviceAccountToken"] = {"expirationSeconds": _TOKEN_SECONDS, **part["serviceAccountToken"]}
    return completed


def _pod_resources(spec: Object) -> Object:
    """Pod-level resources: requests default to the sum of the containers' requests, otherwise to the limits."""
    resources = {part: _canonical(amounts) for part, amounts in spec["resources"].items()}
    if not resources.get("limits"):
        return resources
    requests = dict(resources.get("requests") or {})
    containers = [container.get("resources", {}).get("requests") or {} for container in spec.get("containers") or []]
    for resource, limit in resources["limits"].items():
        if resource not in ("cpu", "memory") and not resource.startswith("hugepages-"):
            continue
        total = sum(quantity.zero_if_invalid(one[resource]) for one in containers if resource in one)
        requests.setdefault(resource, quantity.as_text(total) if total else limit)
    return {**resources, "requests": requests}


def _canonical(amounts: Any) -> Any:  # type: ignore[explicit-any,unused-ignore]
    """Stores `2000m` as `2`; resource claims, which are a list, stay unchanged."""
    if not isinstance(amounts, Mapping):
        return amounts
    return {resource: quantity.canonical(amount) for resource, amount in sorted(amounts.items())}


def _qos_class(spec: Object) -> str:
    parts = [container.get("resources") or {} for part in _CONTAINER_LISTS[:2] for container in spec.get(part) or []]
    resources = [spec["resources"]] if spec.get("resources") else parts
    if not any(
        {*(amounts.get(part) or {})} & {"cpu", "memory"} for amounts in resources for part in ("limits", "requests")
    ):
        return "BestEffort"
    return "Guaranteed" if all(map(_is_guaranteed, resources)) else "Burstable"


def _is_guaranteed(resources: Object) -> bool:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(
        resource in limits
        and quantity.zero_if_invalid(limits[resource])
        == quantity.zero_if_invalid(requests.get(resource, limits[resource]))
        for resource in ("cpu", "memory")
    )
