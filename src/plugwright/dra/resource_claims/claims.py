"""A ResourceClaim as this driver reads it: its allocated devices of this driver, with their settings.

Errors are `ClaimRefused`: the owner of the pod reads their texts in its events. Names become parts of paths and of CDI
names, so each is checked here; an API server accepts no name that would fail.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from plugwright import quantity
from plugwright.errors import ClaimGone, ClaimRefused, InvalidValue
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN

__all__ = ["AllocatedClaim", "AllocatedDevice", "Toleration", "check_identity", "is_uid", "read_claim"]

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN_LIMIT = 253
_DEPTH_LIMIT = 100  # of parameters
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
_SOURCES = {"FromClass": 0, "FromClaim": 1}
_NO_SETTINGS: Mapping[str, object] = MappingProxyType({})
_NOTHING: Mapping[str, int] = MappingProxyType({})

_Object: TypeAlias = Mapping[str, object]


class Toleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a device with this taint can still be allocated."""
        if self.effect not in ("", effect):
            return False
        if self.operator == "Exists":
            return self.key in ("", key)
        return (self.key, self.value) == (key, value)


class AllocatedDevice(msgspec.Struct, frozen=True):
    """One result of an allocation.

    `request` is the name of the claim's request, `reference` also contains the chosen subrequest, if any. `consumed` is
    the claim's part of a shared device's capacity, by names without this driver's domain.
    """

    request: str
    pool: str
    device: str
    share_id: str = ""
    admin_access: bool = False
    consumed: Mapping[str, int] = {}
    parameters: Mapping[str, object] = {}
    reference: str = ""
    tolerations: tuple[Toleration, ...] = ()

    @property
    def exclusive(self) -> bool:
        """Whether no other claim can have the device at the same time."""
        return not self.admin_access and not self.share_id

    def tolerates(self, taint: Mapping[str, str]) -> bool:
        """Whether the claim can have a device with this taint; the effect None excludes no claim."""
        key, value, effect = taint["key"], taint.get("value", ""), taint["effect"]
        return effect == "None" or any(each.tolerates(key, value, effect) for each in self.tolerations)


class AllocatedClaim(msgspec.Struct, frozen=True):
    """A claim with its devices of this driver. `pod_claim_name` is its name in the pod, if generated for a pod.

    `reserved_for` are the uids of the users that use it or are about to, `pods` their names, empty for another kind.
    """

    namespace: str
    name: str
    uid: str
    results: tuple[AllocatedDevice, ...]
    pod_claim_name: str = ""
    reserved_for: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _Configuration(msgspec.Struct, frozen=True):
    requests: tuple[str, ...]
    parameters: Mapping[str, object]

    def concerns(self, reference: str) -> bool:
        """Whether it applies. A request without subrequest includes all its subrequests, no requests mean all."""
        return not self.requests or reference in self.requests or reference.partition("/")[0] in self.requests


def read_claim(document: Mapping[str, object], driver: str) -> AllocatedClaim:
    """The claim in an object of `resource.k8s.io/v1`; `ClaimRefused` without a valid allocation."""
    metadata, status = _object(document, "metadata"), _object(document, "status")
    namespace, name, uid = (_text(metadata, key) for key in ("namespace", "name", "uid"))
    check_identity(namespace, name, uid)
    if not isinstance(status.get("allocation"), Mapping):
        raise ClaimGone(f"ResourceClaim {namespace}/{name} is not allocated")
    devices = _object(_object(status, "allocation"), "devices")
    configs = _objects(devices, "config")
    configurations = _configurations(configs, driver) if configs else []
    results = [result for result in _objects(devices, "results") if _text(result, "driver") == driver]
    users = _objects(status, "reservedFor")
    pod_claim_name = _text(_object(metadata, "annotations"), _POD_CLAIM_NAME)
    return AllocatedClaim(
        namespace,
        name,
        uid,
        tuple(_device(result, driver, configurations) for result in results),
        pod_claim_name if DNS_LABEL.fullmatch(pod_claim_name) else "",
        tuple(sorted({_text(user, "uid") for user in users})),
        tuple(sorted({_text(user, "name") if user.get("resource") == "pods" else "" for user in users})),
    )


def is_uid(text: str) -> bool:
    return bool(_UID.fullmatch(text))


def check_identity(namespace: str, name: str, uid: str) -> None:
    _check_name("namespace of a ResourceClaim", namespace, DNS_LABEL)
    _check_name("name of a ResourceClaim", name, DNS_SUBDOMAIN)
    _check_name("uid of a ResourceClaim", uid, _UID)


def _device(result: _Object, driver: str, configurations: Iterable[_Configuration]) -> AllocatedDevice:
    reference, pool, device = (_text(result, key) for key in ("request", "pool", "device"))
    for part in reference.split("/"):
        _check_name("name of a request", part, DNS_LABEL)
    _check_name("name of a device", device, DNS_LABEL)
    for part in pool.split("/"):
        _check_name("name of a pool", part, DNS_SUBDOMAIN)
    share_id = _text(result, "shareID")
    if share_id:
        _check_name("shareID", share_id, _UID)
    capacity = _object(result, "consumedCapacity")
    matching = [configuration for configuration in configurations if configuration.concerns(reference)]
    return AllocatedDevice(
        reference.partition("/")[0],
        pool,
        device,
        share_id,
        result.get("adminAccess") is True,
        _consumed(capacity, driver) if capacity else _NOTHING,
        matching[-1].parameters if matching else _NO_SETTINGS,
        reference,
        tuple(map(_toleration, _objects(result, "tolerations"))),
    )


def _configurations(entries: Iterable[_Object], driver: str) -> list[_Configuration]:
    """This driver's configurations, highest precedence last: the claim's over its class's, later over earlier ones."""
    ours = [entry for entry in entries if _text(_object(entry, "opaque"), "driver") == driver]
    ours.sort(key=lambda entry: _SOURCES.get(_text(entry, "source"), 0))
    return [_Configuration(_texts(entry, "requests"), _parameters(_object(entry, "opaque"))) for entry in ours]


def _parameters(opaque: _Object) -> Mapping[str, object]:
    parameters = opaque.get("parameters")
    if not isinstance(parameters, Mapping):
        raise ClaimRefused(f"parameters for {opaque.get('driver')} must be an object, got {parameters!r}")
    if _depth(parameters) > _DEPTH_LIMIT:  # deeper values could be missing already
        raise ClaimRefused(f"parameters for {opaque.get('driver')} must not be nested deeper than {_DEPTH_LIMIT}")
    return MappingProxyType(dict(parameters))


def _depth(value: object) -> int:
    depth, inner = 0, [value]
    while inner := [entry for part in inner for entry in _entries(part)]:
        depth += 1
    return depth


def _entries(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _consumed(capacity: _Object, driver: str) -> Mapping[str, int]:
    """By plain names, because a claim can contain this driver's names with or without its domain."""
    consumed: dict[str, int] = {}
    for name, amount in sorted(capacity.items()):
        try:
            number = quantity.whole(quantity.parse(str(amount)))
        except InvalidValue as error:
            raise ClaimRefused(f"consumedCapacity {name}: {error}") from error
        plain = name.removeprefix(f"{driver}/")
        consumed[plain] = max(number, consumed.get(plain, 0))
    return MappingProxyType(consumed)


def _toleration(entry: _Object) -> Toleration:
    return Toleration(
        _text(entry, "key"), _text(entry, "operator") or "Equal", _text(entry, "value"), _text(entry, "effect")
    )


def _check_name(what: str, text: str, pattern: re.Pattern[str]) -> None:
    if len(text) > _SUBDOMAIN_LIMIT or not pattern.fullmatch(text):
        raise ClaimRefused(f"{what} must be one that Kubernetes allows, got {text[:_SUBDOMAIN_LIMIT]!r}")


def _object(parent: _Object, key: str) -> _Object:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _objects(parent: _Object, key: str) -> list[_Object]:
    value = parent.get(key)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _text(parent: _Object, key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""


def _texts(parent: _Object, key: str) -> tuple[str, ...]:
    value = parent.get(key)
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()
