"""ResourceQuotas on devices. A claim rejected by a quota is never created, so its pod waits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from plugwright import quantity
from plugwright.explain.world import ApiObject, ClaimOrigin, World, identity, is_device_resource
from plugwright.quantity import zero_if_invalid

__all__ = ["QuotaShortage", "shortages"]

_CLASS_SUFFIX = ".deviceclass.resource.k8s.io/devices"
_CLAIMS = "count/resourceclaims.resource.k8s.io"
_MOST = 32  # devices that a claim can have, charged for `allocationMode: All`


class QuotaShortage(Struct, frozen=True):
    """A quota limit that rejects an object of the pod."""

    namespace: str
    quota: str
    key: str
    hard: int
    used: int
    wanted: int

    @property
    def text(self) -> str:
        allowed = f"ResourceQuota {self.quota} allows {self.hard} {self.key}"
        return f"{allowed}, {self.used} are in use and {self.wanted} more are needed"


def shortages(
    world: World, namespace: str, requests: Mapping[str, int], sources: Sequence[ClaimOrigin]
) -> Iterator[QuotaShortage]:
    """`requests` are those of a pod that is not created yet; existing claims were admitted before."""
    if not world.quotas:
        return
    wanted: dict[str, int] = {}
    for name, amount in requests.items():
        if is_device_resource(name):
            wanted[f"requests.{name}"] = amount
    for source in sources:
        if source.exists or source.claim is None:
            continue
        wanted[_CLAIMS] = wanted.get(_CLAIMS, 0) + 1
        for name, count in _devices(source.claim).items():
            key = name + _CLASS_SUFFIX
            wanted[key] = wanted.get(key, 0) + count
    for quota in world.quotas:
        if identity(quota)[0] == namespace:
            yield from _of_quota(quota, wanted)


def _of_quota(quota: ApiObject, wanted: Mapping[str, int]) -> Iterator[QuotaShortage]:
    namespace, name = identity(quota)
    hard, used = (quota.get("spec") or {}).get("hard") or {}, (quota.get("status") or {}).get("used") or {}
    for key, amount in wanted.items():
        if key in hard:
            limit, taken = (quantity.whole(zero_if_invalid(values.get(key, "0"))) for values in (hard, used))
            if taken + amount > limit:
                yield QuotaShortage(namespace, name, key, limit, taken, amount)


def _devices(claim: ApiObject) -> Mapping[str, int]:
    """Devices by class; the API server charges the largest alternative of `firstAvailable`."""
    charged: dict[str, int] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        alternatives: Iterable[ApiObject] = [request["exactly"]] if request.get("exactly") else ()
        of_request: dict[str, int] = {}
        for entry in alternatives or request.get("firstAvailable") or ():
            count = _MOST if entry.get("allocationMode") == "All" else int(entry.get("count") or 1)
            name = str(entry.get("deviceClassName"))
            of_request[name] = max(of_request.get(name, 0), count)
        for name, count in of_request.items():
            charged[name] = charged.get(name, 0) + count
    return charged
