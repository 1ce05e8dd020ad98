"""Validation of pods, with kube-apiserver's field paths and messages; one module for each part of a pod.

This module contains the rules for the pod as a whole. Objects arrive here typed and with their defaults; the rules are
those of 1.36 with its default feature gates.
"""

import ipaddress
from collections.abc import Iterator

from plugwright.apiserver.kinds.pod_validation import placement, requirements, security_context, volume_sources
from plugwright.apiserver.kinds.pod_validation.containers import PodContext, container_errors
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    dns_subdomain_errors,
    forbidden,
    invalid,
    invalid_for,
    qualified_name_errors,
    required,
    unsupported,
)

__all__ = ["validate", "validate_create", "validate_status"]

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_NAMESERVERS, _SEARCH_PATHS, _SEARCH_CHARACTERS, _LONGEST_HOSTNAME = 3, 32, 2048, 64
_LONGEST_DEADLINE = 2**31 - 1
_ADDRESS_RULE = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_SEARCH_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
)


def validate(pod: Object) -> Iterator[FieldError]:
    spec = pod.get("spec") or {}
    volumes = spec.get("volumes") or []
    yield from volume_sources.volume_errors(volumes)
    yield from requirements.claim_errors(spec.get("resourceClaims") or [])
    yield from container_errors(PodContext(spec, volume_sources.valid_volumes(volumes)))
    yield from requirements.pod_requirement_errors(spec)
    yield from _host_network_errors(spec)
    yield from unsupported("spec.restartPolicy", spec.get("restartPolicy", "Always"), _RESTART_POLICIES)
    yield from unsupported("spec.dnsPolicy", spec.get("dnsPolicy", "ClusterFirst"), _DNS_POLICIES)
    yield from security_context.pod_errors(spec)
    yield from _dns_errors(spec)
    yield from placement.placement_errors(spec)
    yield from _name_errors(spec)
    yield from _other_errors(spec)


def validate_create(pod: Object) -> Iterator[FieldError]:
    spec = pod.get("spec") or {}
    if spec.get("ephemeralContainers"):
        yield forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def validate_status(pod: Object) -> Iterator[FieldError]:
    for number, address in enumerate((pod.get("status") or {}).get("podIPs") or []):
        yield from _address_errors(f"status.podIPs[{number}]", str(address.get("ip") or ""))


def _host_network_errors(spec: Object) -> Iterator[FieldError]:
    if not spec.get("hostNetwork"):
        return
    for number, container in enumerate(spec.get("containers") or []):
        for index, port in enumerate(container.get("ports") or []):
            if port.get("hostPort", 0) != port.get("containerPort", 0):
                field = f"spec.containers[{number}].ports[{index}].hostPort"
                text = "must match `containerPort` when `hostNetwork` is true"
                yield invalid(field, port.get("hostPort", 0), text)


def _dns_errors(spec: Object) -> Iterator[FieldError]:
    config, field = spec.get("dnsConfig"), "spec.dnsConfig"
    if spec.get("dnsPolicy") == "None":
        if config is None:
            yield required(field, "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not config.get("nameservers"):
            text = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield required(f"{field}.nameservers", text)
            return
    if config is None:
        return
    servers = config.get("nameservers") or []
    if len(servers) > _NAMESERVERS:
        yield invalid(f"{field}.nameservers", servers, f"must not have more than {_NAMESERVERS} nameservers")
    for number, server in enumerate(servers):
        yield from _address_errors(f"{field}.nameservers[{number}]", server)
    yield from _search_errors(field, config.get("searches") or [])
    for number, option in enumerate(config.get("options") or []):
        if not option.get("name"):
            yield required(f"{field}.options[{number}]", "must not be empty")


def _search_errors(field: str, searches: list[str]) -> Iterator[FieldError]:
    if len(searches) > _SEARCH_PATHS:
        yield invalid(f"{field}.searches", searches, f"must not have more than {_SEARCH_PATHS} search paths")
    if len(" ".join(searches)) > _SEARCH_CHARACTERS:
        text = f"must not have more than {_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        yield invalid(f"{field}.searches", searches, text)
    for number, search in enumerate(searches):
        if search != "." and any(dns_subdomain_errors(search.removesuffix(".").replace("_", "a"))):
            yield invalid(f"{field}.searches[{number}]", search.removesuffix("."), _SEARCH_RULE)


def _address_errors(field: str, address: str) -> Iterator[FieldError]:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        yield invalid(field, address, _ADDRESS_RULE)


def _name_errors(spec: Object) -> Iterator[FieldError]:
    for member, errors in (
        ("serviceAccountName", dns_subdomain_errors),
        ("nodeName", dns_subdomain_errors),
        ("hostname", dns_label_errors),
        ("subdomain", dns_label_errors),
        ("priorityClassName", dns_subdomain_errors),
        ("runtimeClassName", dns_subdomain_errors),
    ):
        name = spec.get(member)
        if name:
            yield from invalid_for(f"spec.{member}", name, errors(str(name)))
    for number, gate in enumerate(spec.get("readinessGates") or []):
        condition = str(gate.get("conditionType") or "")
        yield from invalid_for(
            f"spec.readinessGates[{number}].conditionType", condition, qualified_name_errors(condition)
        )
    for number, alias in enumerate(spec.get("hostAliases") or []):
        field = f"spec.hostAliases[{number}]"
        yield from _address_errors(f"{field}.ip", str(alias.get("ip") or ""))
        for index, name in enumerate(alias.get("hostnames") or []):
            yield from invalid_for(f"{field}.hostnames[{index}]", name, dns_subdomain_errors(name))


def _other_errors(spec: Object) -> Iterator[FieldError]:
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _LONGEST_DEADLINE:
        text = f"must be between 1 and {_LONGEST_DEADLINE}, inclusive"
        yield invalid("spec.activeDeadlineSeconds", deadline, text)
    if spec.get("preemptionPolicy") is not None:
        policies = ("PreemptLowerPriority", "Never")
        yield from unsupported("spec.preemptionPolicy", spec["preemptionPolicy"], policies)
    if spec.get("overhead"):
        yield from requirements.overhead_errors("spec.overhead", spec["overhead"])
    override, field = spec.get("hostnameOverride"), "spec.hostnameOverride"
    if override is None:
        return
    if spec.get("setHostnameAsFQDN"):
        yield forbidden(field, "may not be specified when setHostnameAsFQDN is true")
    if spec.get("hostNetwork"):
        yield forbidden(field, "may not be specified when hostNetwork is true")
    if len(override) > _LONGEST_HOSTNAME:
        text = f"Too long: may not be more than {_LONGEST_HOSTNAME} bytes"
        yield FieldError(field, text, "FieldValueTooLong")
    yield from invalid_for(field, override, dns_subdomain_errors(override))
