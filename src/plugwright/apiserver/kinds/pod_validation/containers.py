"""Containers of a pod, of all three kinds: names, images, ports, policies, and fields forbidden for each kind.

Separate modules validate their variables, mounts, probes, resources and security contexts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plugwright.apiserver.kinds.pod_validation import (
    probe_handlers,
    requirements,
    security_context,
    variables,
    volume_mounts,
)
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    duplicate,
    forbidden,
    invalid,
    invalid_for,
    missing,
    required,
    unsupported,
)

__all__ = ["PodContext", "container_errors"]

_PULL_POLICIES, _PROTOCOLS = ("Always", "IfNotPresent", "Never"), ("SCTP", "TCP", "UDP")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_MOST_RULES, _MOST_EXIT_CODES = 20, 255
_NOT_EPHEMERAL = (
    "ports", "resources", "resizePolicy", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle",
    "restartPolicy", "restartPolicyRules",
)  # fmt: skip
_ONLY_SIDECARS = "may not be set for init containers without restartPolicy=Always"


@dataclass(frozen=True, slots=True)
class PodContext:
    """The pod's facts that the rules for a container need; `volumes` are the valid ones, by name."""

    spec: Object
    volumes: Mapping[str, Object]

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(claim["name"] for claim in self.spec.get("resourceClaims") or [] if claim.get("name"))

    @property
    def grace_period(self) -> int:
        return int(self.spec.get("terminationGracePeriodSeconds", 30))


def container_errors(context: PodContext) -> Iterator[FieldError]:
    spec, names = context.spec, set[str]()
    containers, init_containers = spec.get("containers") or [], spec.get("initContainers") or []
    if not containers:
        yield required("spec.containers")
    for number, container in enumerate(containers):
        field = f"spec.containers[{number}]"
        yield from _common_errors(field, container, context)
        yield from _name_errors(field, container, names)
        yield from _process_errors(field, container, context)
        yield from _restart_errors(field, container)
    yield from _host_port_errors("spec.containers", containers)
    for number, container in enumerate(init_containers):
        field = f"spec.initContainers[{number}]"
        yield from _common_errors(field, container, context)
        yield from _name_errors(field, container, names)
        yield from _restart_errors(field, container)
        yield from _host_port_errors("spec.initContainers", [container])
        yield from _init_errors(field, container, context)
    for number, container in enumerate(spec.get("ephemeralContainers") or []):
        others = {str(other.get("name")) for other in (*containers, *init_containers)}
        field = f"spec.ephemeralContainers[{number}]"
        yield from _common_errors(field, container, context)
        yield from _name_errors(field, container, names)
        yield from _ephemeral_errors(field, container, others)


def _name_errors(field: str, container: Object, names: set[str]) -> Iterator[FieldError]:
    """`names` are those of the preceding containers, to which this name is added."""
    name = str(container.get("name") or "")
    if name and name in names:
        yield duplicate(f"{field}.name", name)
    names.add(name)


def _common_errors(field: str, container: Object, context: PodContext) -> Iterator[FieldError]:
    name, image = str(container.get("name") or ""), str(container.get("image") or "")
    if not name:
        yield required(f"{field}.name")
    else:
        yield from invalid_for(f"{field}.name", name, dns_label_errors(name))
    if not image:
        yield required(f"{field}.image")
    elif image != image.strip():
        yield invalid(f"{field}.image", image, "must not have leading or trailing whitespace")
    policy = container.get("terminationMessagePolicy", "File")
    yield from unsupported(f"{field}.terminationMessagePolicy", policy, ("File", "FallbackToLogsOnError"))
    yield from _port_errors(f"{field}.ports", container.get("ports") or [])
    yield from variables.env_errors(f"{field}.env", container.get("env") or [])
    yield from variables.env_from_errors(f"{field}.envFrom", container.get("envFrom") or [])
    yield from volume_mounts.mount_errors(field, container, context.volumes)
    yield from volume_mounts.device_errors(field, container, context.volumes)
    policy = container.get("imagePullPolicy", "Always")
    yield from unsupported(f"{field}.imagePullPolicy", policy, _PULL_POLICIES)
    resources = container.get("resources") or {}
    yield from requirements.requirement_errors(f"{field}.resources", resources, context.claims)
    yield from _resize_errors(f"{field}.resizePolicy", container.get("resizePolicy") or [], context)
    has_host_users = context.spec.get("hostUsers", True)
    security = container.get("securityContext") or {}
    yield from security_context.container_errors(f"{field}.securityContext", security, has_host_users)


def _process_errors(field: str, container: Object, context: PodContext) -> Iterator[FieldError]:
    if container.get("lifecycle") is not None:
        lifecycle = container["lifecycle"]
        yield from probe_handlers.lifecycle_errors(f"{field}.lifecycle", lifecycle, context.grace_period)
    for probe in probe_handlers.PROBES:
        if container.get(probe) is not None:
            yield from probe_handlers.probe_errors(f"{field}.{probe}", probe, container[probe], context.grace_period)


def _port_errors(field: str, ports: list[Object]) -> Iterator[FieldError]:
    names: set[str] = set()
    for number, port in enumerate(ports):
        place, name = f"{field}[{number}]", str(port.get("name") or "")
        errors = list(probe_handlers.port_name_errors(name)) if name else []
        yield from invalid_for(f"{place}.name", name, errors)
        if name and name in names:
            yield duplicate(f"{place}.name", name)
        if name and not errors:
            names.add(name)
        if not port.get("containerPort"):
            yield required(f"{place}.containerPort")
        else:
            yield from probe_handlers.port_errors(f"{place}.containerPort", port["containerPort"])
        if port.get("hostPort"):
            yield from probe_handlers.port_errors(f"{place}.hostPort", port["hostPort"])
        yield from unsupported(f"{place}.protocol", port.get("protocol") or "TCP", _PROTOCOLS)


def _host_port_errors(field: str, containers: list[Object]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, container in enumerate(containers):
        for index, port in enumerate(container.get("ports") or []):
            if port.get("hostPort"):
                address = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{port['hostPort']}"
                if address in seen:
                    yield duplicate(f"{field}[{number}].ports[{index}].hostPort", address)
                seen.add(address)


def _resize_errors(field: str, policies: list[Object], context: PodContext) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, policy in enumerate(policies):
        resource, restart = str(policy.get("resourceName") or ""), str(policy.get("restartPolicy") or "")
        if resource in seen:
            yield duplicate(f"{field}[{number}]", resource)
        seen.add(resource)
        for value, supported in (
            (resource, ("cpu", "memory")),
            (restart, ("NotRequired", "RestartContainer")),
        ):
            if not value:
                yield required(field)
            else:
                yield from unsupported(field, value, supported)
        if context.spec.get("restartPolicy") == "Never" and restart != "NotRequired":
            yield invalid(field, restart, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


def _restart_errors(field: str, container: Object) -> Iterator[FieldError]:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or []
    if policy is not None:
        yield from unsupported(f"{field}.restartPolicy", policy, _RESTART_POLICIES)
    elif rules:
        yield required(f"{field}.restartPolicy", "must specify restartPolicy when restart rules are used")
    if len(rules) > _MOST_RULES:
        text = f"Too many: {len(rules)}: must have at most {_MOST_RULES} items"
        yield FieldError(f"{field}.restartPolicyRules", text, "FieldValueTooMany")
    for number, rule in enumerate(rules):
        yield from _rule_errors(f"{field}.restartPolicyRules[{number}]", rule)


def _rule_errors(field: str, rule: Object) -> Iterator[FieldError]:
    yield from unsupported(f"{field}.action", rule.get("action") or "", ("Restart", "RestartAllContainers"))
    codes = rule.get("exitCodes")
    if codes is None:
        yield required(f"{field}.exitCodes", "must be specified")
        return
    yield from unsupported(f"{field}.exitCodes.operator", codes.get("operator") or "", ("In", "NotIn"))
    count = len(codes.get("values") or [])
    if count > _MOST_EXIT_CODES:
        text = f"Too many: {count}: must have at most {_MOST_EXIT_CODES} items"
        yield FieldError(f"{field}.exitCodes.values", text, "FieldValueTooMany")


def _init_errors(field: str, container: Object, context: PodContext) -> Iterator[FieldError]:
    if container.get("restartPolicy") == "Always":  # a sidecar
        yield from _process_errors(field, container, context)
        return
    for part in ("lifecycle", *probe_handlers.PROBES):
        if container.get(part) is not None:
            yield forbidden(f"{field}.{part}", _ONLY_SIDECARS)
    for number, policy in enumerate(container.get("resizePolicy") or []):
        if policy.get("restartPolicy") == "RestartContainer":
            text = "must not be set to 'RestartContainer' for non-sidecar initContainers"
            yield invalid(f"{field}.resizePolicy[{number}].restartPolicy", policy["restartPolicy"], text)


def _ephemeral_errors(field: str, container: Object, others: set[str]) -> Iterator[FieldError]:
    target = container.get("targetContainerName")
    if target and target not in others:
        yield missing(f"{field}.targetContainerName", target)
    for part in _NOT_EPHEMERAL:
        if container.get(part):
            yield forbidden(f"{field}.{part}", "cannot be set for an Ephemeral Container")
    for number, mount in enumerate(container.get("volumeMounts") or []):
        for part in ("subPath", "subPathExpr"):
            if mount.get(part):
                place = f"{field}.volumeMounts[{number}].{part}"
                yield forbidden(place, "cannot be set for an Ephemeral Container")
