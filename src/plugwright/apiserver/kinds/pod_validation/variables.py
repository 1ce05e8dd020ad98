"""Environment variables of containers: names, values, and the fields, resources and keys from which they come."""

import re
from collections.abc import Iterator

from plugwright import quantity
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    config_key_errors,
    dns_label_errors,
    dns_subdomain_errors,
    invalid,
    invalid_for,
    qualified_name_errors,
    required,
    unsupported,
)

__all__ = ["env_errors", "env_from_errors", "field_reference_errors", "resource_reference_errors"]

_VARIABLE_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_KNOWN_FIELDS = frozenset(
    {*_VARIABLE_FIELDS, "metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName",
     "status.phase"}
)  # fmt: skip
_RESOURCES = tuple(
    f"{part}.{resource}" for part in ("limits", "requests") for resource in ("cpu", "ephemeral-storage", "memory")
)
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_SIZES = ("1", *(f"1{unit}" for unit in "kMGTPE"), *(f"1{unit}i" for unit in "KMGTPE"))
_SUBSCRIPT = re.compile(r"(metadata\.(?:annotations|labels)|[^\[\]]+)\['(.*)'\]", re.DOTALL)
_NAME_RULE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def env_errors(field: str, variables: list[Object]) -> Iterator[FieldError]:
    for number, variable in enumerate(variables):
        place, name = f"{field}[{number}]", str(variable.get("name") or "")
        if not name:
            yield required(f"{place}.name")
        else:
            yield from invalid_for(f"{place}.name", name, _variable_name_errors(name))
        if variable.get("valueFrom") is not None:
            yield from _source_errors(f"{place}.valueFrom", variable)


def _variable_name_errors(name: str) -> Iterator[str]:
    if not name.isascii() or not name.isprintable() or "=" in name:
        yield _NAME_RULE


def _source_errors(field: str, variable: Object) -> Iterator[FieldError]:
    source = variable["valueFrom"]
    given = [name for name in _SOURCES if source.get(name) is not None]
    for name in given:
        yield from _reference_errors(f"{field}.{name}", name, source[name])
    if not given:
        choices = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        yield invalid(field, "", f"must specify one of: {choices}")
    elif variable.get("value"):
        yield invalid(field, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        yield invalid(field, "", "may not have more than one field specified at a time")


def _reference_errors(field: str, kind: str, reference: Object) -> Iterator[FieldError]:
    if kind == "fieldRef":
        yield from field_reference_errors(field, reference, _VARIABLE_FIELDS)
    elif kind == "resourceFieldRef":
        yield from resource_reference_errors(field, reference, needs_container=False)
    elif kind == "fileKeyRef":
        yield from _file_key_errors(field, reference)
    else:
        name, key = str(reference.get("name") or ""), str(reference.get("key") or "")
        yield from invalid_for(f"{field}.name", name, dns_subdomain_errors(name))
        if not key:
            yield required(f"{field}.key")
        else:
            yield from invalid_for(f"{field}.key", key, config_key_errors(key))


def _file_key_errors(field: str, reference: Object) -> Iterator[FieldError]:
    rules = {"key": _variable_name_errors, "volumeName": dns_label_errors, "path": _backstep_errors}
    for member, errors in rules.items():
        value = str(reference.get(member) or "")
        if not value:
            yield required(f"{field}.{member}")
        else:
            yield from invalid_for(f"{field}.{member}", value, errors(value))


def _backstep_errors(path: str) -> Iterator[str]:
    if ".." in path.split("/"):
        yield "must not contain '..'"


def field_reference_errors(field: str, reference: Object, allowed: tuple[str, ...]) -> Iterator[FieldError]:
    """`allowed` are the permitted fields of the pod, besides single labels and annotations."""
    path = str(reference.get("fieldPath") or "")
    if not path:
        yield required(f"{field}.fieldPath")
        return
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript and subscript[1].startswith("metadata."):
        key = subscript[2].lower() if subscript[1].endswith("annotations") else subscript[2]
        yield from invalid_for(field, key, qualified_name_errors(key))
    elif path not in _KNOWN_FIELDS:
        text = f"error converting fieldPath: field label not supported: {path}"
        yield invalid(f"{field}.fieldPath", path, text)
    else:
        yield from unsupported(f"{field}.fieldPath", path, sorted(allowed))


def resource_reference_errors(field: str, reference: Object, *, needs_container: bool) -> Iterator[FieldError]:
    resource = str(reference.get("resource") or "")
    if needs_container and not reference.get("containerName"):
        yield required(f"{field}.containerName")
    elif not resource:
        yield required(f"{field}.resource")
    elif not resource.startswith(_HUGE_PAGES):
        yield from unsupported(f"{field}.resource", resource, _RESOURCES)
    divisor = quantity.canonical(reference.get("divisor") or "0")
    rule = _divisor_rule(resource, divisor)
    if divisor != "0" and rule:
        yield invalid(f"{field}.divisor", resource, rule)


def _divisor_rule(resource: str, divisor: str) -> str:
    """The violated rule of the divisor, or empty."""
    if resource.endswith(".cpu"):
        return "" if divisor in ("1m", "1") else "only divisor's values 1m and 1 are supported with the cpu resource"
    name = {"memory": "memory", "ephemeral-storage": "local ephemeral storage"}.get(resource.partition(".")[2])
    name = "hugepages" if resource.startswith(_HUGE_PAGES) else name
    if name is None or divisor in _SIZES:
        return ""
    return f"only divisor's values {', '.join(_SIZES)} are supported with the {name} resource"


def env_from_errors(field: str, sources: list[Object]) -> Iterator[FieldError]:
    for number, source in enumerate(sources):
        place, prefix = f"{field}[{number}]", str(source.get("prefix") or "")
        yield from invalid_for(f"{place}.prefix", prefix, _variable_name_errors(prefix))
        given = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        for kind in given:
            name = str(source[kind].get("name") or "")
            if not name:
                yield required(f"{place}.{kind}.name")
            else:
                # The rule for prefixes of names, which can end in a hyphen or dot.
                errors = dns_subdomain_errors(re.sub(r"[-.]$", "a", name))
                yield from invalid_for(f"{place}.{kind}.name", name, errors)
        if not given:
            yield invalid(field, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            yield invalid(field, "", "may not have more than one field specified at a time")
