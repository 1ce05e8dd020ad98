"""Services: their addresses, ports and columns. Nothing listens on an address, because pods have no network."""

import secrets
from collections.abc import Iterator
from datetime import datetime

from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object, ObjectLookup
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    duplicate,
    invalid,
    invalid_for,
    required,
    unsupported,
    validate_labels,
)

__all__ = ["SERVICES"]

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_OPENED = ("LoadBalancer", "NodePort")  # types with a port on every node
_FIRST_NODE_PORT, _NODE_PORTS = 30000, 2768
_HEADLESS = "None"
_HIGHEST_PORT = 65535
_KEPT = ("clusterIP", "clusterIPs")  # on an update that omits them


def _with_defaults(service: Object) -> Object:
    spec = {"type": "ClusterIP", "sessionAffinity": "None", **(service.get("spec") or {})}
    if spec.get("ports"):
        spec["ports"] = [_port_with_defaults(port) for port in spec["ports"]]
    if spec["type"] != "ExternalName":
        families = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"}
        spec = {**families, **spec}
    if spec["type"] in _OPENED:
        spec = {"externalTrafficPolicy": "Cluster", **spec}
    return {**service, "spec": spec}


def _port_with_defaults(port: Object) -> Object:
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}


def _prepare_for_create(service: Object) -> Object:
    return {**_with_defaults(service), "status": {"loadBalancer": {}}}


def _prepare_for_update(before: Object, after: Object) -> Object:
    """Keeps the address and the ports of nodes, unless the update specifies others."""
    prepared, old = _with_defaults(after), before["spec"]
    spec = prepared["spec"]
    if spec["type"] != "ExternalName":
        spec = {**{name: old[name] for name in _KEPT if name in old}, **{k: v for k, v in spec.items() if v != ""}}
    opened = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in old.get("ports") or []}
    if spec["type"] in _OPENED and spec.get("ports"):
        spec["ports"] = [
            {**({"nodePort": kept} if (kept := opened.get((port["protocol"], port.get("port")))) else {}), **port}
            for port in spec["ports"]
        ]
    return {**prepared, "spec": spec}


def _admit(service: Object, objects: ObjectLookup) -> str | None:
    """Chooses an unused address and unused ports."""
    spec, others = service["spec"], [other["spec"] for other in objects.objects("services")]
    if spec["type"] == "ExternalName":
        return None
    if not spec.get("clusterIP"):
        taken = {other.get("clusterIP") for other in others}
        spec["clusterIP"] = next(address for address in _addresses() if address not in taken)
    spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in _OPENED:
        used = {port.get("nodePort") for other in others for port in other.get("ports") or []}
        for port in spec.get("ports") or []:
            if not port.get("nodePort"):
                free = [_FIRST_NODE_PORT + number for number in range(_NODE_PORTS)]
                port["nodePort"] = secrets.choice([number for number in free if number not in used])
                used.add(port["nodePort"])
    return None


def _addresses() -> Iterator[str]:
    """Random addresses of 10.96.0.0/12, the range of a cluster made by kubeadm."""
    while True:
        number = secrets.randbelow(2**20 - 2) + 1
        yield f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _validate(service: Object) -> Iterator[FieldError]:
    spec = service["spec"]
    yield from unsupported("spec.type", spec["type"], _TYPES)
    yield from validate_labels("spec.selector", spec.get("selector") or {})
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != _HEADLESS:
        yield required("spec.ports")
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        yield required("spec.externalName")
    names: set[object] = set()
    for number, port in enumerate(ports):
        yield from _port_errors(port, f"spec.ports[{number}]", len(ports) > 1)
        if port.get("name") in names:
            yield duplicate(f"spec.ports[{number}].name", port.get("name"))
        names.add(port.get("name"))


def _port_errors(port: Object, field: str, needs_name: bool) -> Iterator[FieldError]:
    if port.get("name"):
        yield from invalid_for(f"{field}.name", port["name"], dns_label_errors(port["name"]))
    elif needs_name:
        yield required(f"{field}.name")
    for name in ("port", "targetPort"):
        value = port.get(name)
        is_name = name == "targetPort" and isinstance(value, str)
        if not is_name and not (isinstance(value, int) and 0 < value <= _HIGHEST_PORT):
            yield invalid(f"{field}.{name}", value or 0, "must be between 1 and 65535, inclusive")
    yield from unsupported(f"{field}.protocol", port["protocol"], _PROTOCOLS)


def _validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    old, new = before["spec"].get("clusterIP"), after["spec"].get("clusterIP")
    if old and old != new and after["spec"]["type"] != "ExternalName" != before["spec"]["type"]:
        yield invalid("spec.clusterIPs[0]", new, "may not change once set")


def _external(service: Object, _now: datetime) -> str:
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return str(spec.get("externalName") or "")
    named = ",".join(spec.get("externalIPs") or [])
    return named or ("<pending>" if spec["type"] == "LoadBalancer" else "<none>")


def _ports(service: Object, _now: datetime) -> str:
    parts = []
    for port in service["spec"].get("ports") or []:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        parts.append(f"{port['port']}{node}/{port['protocol']}")
    return ",".join(parts) or "<none>"


def _selector(service: Object, _now: datetime) -> str:
    labels = service["spec"].get("selector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


SERVICES = Kind(
    plural="services",
    name="Service",
    short_names=("svc",),
    categories=("all",),
    has_status=True,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    admit=_admit,
    admitted_fields=frozenset({"clusterIP", "clusterIPs"}),
    name_errors=dns_label_errors,
    validate=_validate,
    validate_update=_validate_update,
    returns_deleted_object=True,
    columns=(
        NAME,
        Column("Type", lambda service, _: service["spec"]["type"]),
        Column("Cluster-IP", lambda service, _: service["spec"].get("clusterIP") or "<none>"),
        Column("External-IP", _external),
        Column("Port(s)", _ports),
        AGE,
        Column("Selector", _selector, wide=True),
    ),
    selectable_fields=frozenset({"spec.clusterIP", "spec.type"}),
)
