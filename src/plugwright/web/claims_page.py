"""The view of claims: the requests, devices and users of each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plugwright.explain.world import ApiObject, allocation_of, identity
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.model import natural_order
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, attribute, command, device_link, node_link, pod_link, table, text
from plugwright.web.rendering import Rendering

__all__ = ["ClaimsPage"]

_MOST = 500
_COLUMNS = ["Claim", "State", "Requests", "Devices", "Used by", "Command"]


class ClaimsPage:
    title = "Claims"

    def __init__(self, query: Mapping[str, str]) -> None:
        self._wanted = query.get("q", "").strip()[:253]

    def render(self, fleet: LiveFleet) -> Rendering:
        claims = [claim for claim in fleet.objects.of("claims").values() if self._wanted in "/".join(identity(claim))]
        claims.sort(key=lambda claim: tuple(map(natural_order, identity(claim))))
        rows = [_row(claim, fleet) for claim in claims[:_MOST]]
        listed = table("ResourceClaims", _COLUMNS, rows, "No claim matches." if self._wanted else "There is no claim.")
        more = f"<p>{len(claims) - _MOST} more: choose them by name</p>" if len(claims) > _MOST else ""
        allocated = sum(bool(allocation_of(claim)) for claim in claims)
        count = f"{len(claims):,} {'claim' if len(claims) == 1 else 'claims'}, {allocated:,} with devices"
        return Rendering(
            '<h1>Claims</h1><form class="filters" role="search" aria-label="Filter" action="/claims" method="get">'
            f'<label>Name <input id="q" name="q" type="search" value="{attribute(self._wanted)}"></label>'
            '<button type="submit">Show</button> <a href="/claims">all</a></form>'
            f'<div role="status"><p>{count}</p></div>{listed}{more}'
        )


def _row(claim: ApiObject, fleet: LiveFleet) -> Sequence[Html]:
    namespace, name = identity(claim)
    names = [text_of(user.get("name")) for user in (claim.get("status") or {}).get("reservedFor") or ()]
    users = [pod_link(namespace, pod, pod) for pod in names]
    state = "allocated" if allocation_of(claim) else "waiting"
    if (claim.get("metadata") or {}).get("deletionTimestamp"):
        state = "being deleted"
    return (
        text(f"{namespace}/{name}"),
        text(state),
        "<br>".join(map(text, _requests(claim))) or "-",
        "<br>".join(_devices(claim, fleet)) or "-",
        "<br>".join(users) or "-",
        command("kubectl", "plugwright", "why", "-n", namespace, f"claim/{name}"),
    )


def _requests(claim: ApiObject) -> Iterator[str]:
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        name = text_of(request.get("name"))
        if request.get("firstAvailable"):
            yield f"{name}: the first available of {', '.join(map(_wanted, request['firstAvailable']))}"
        else:
            yield f"{name}: {_wanted(request.get('exactly') or {})}"


def _wanted(request: Mapping[str, Any]) -> str:
    count = "all" if request.get("allocationMode") == "All" else text_of(request.get("count")) or "1"
    return f"{count} of {text_of(request.get('deviceClassName'))}"


def _devices(claim: ApiObject, fleet: LiveFleet) -> Iterator[Html]:
    for result in ((allocation_of(claim) or {}).get("devices") or {}).get("results") or ():
        driver, pool, device = (text_of(result.get(key)) for key in ("driver", "pool", "device"))
        node = fleet.node_of_pool(pool)
        share = " (a share)" if result.get("shareID") else ""
        known = _device(fleet, node, device, claim)
        shown = device_link(known) if known is not None else text(f"{driver}/{pool}/{device}")
        where = f" on {node_link(node)}" if node else ""
        yield f"{shown}{share}{where}"


def _device(fleet: LiveFleet, node: str, name: str, claim: ApiObject) -> FleetDevice | None:
    """The device of a node that the claim holds under this name."""
    part = fleet.parts.get(node)
    for device in part.devices if part is not None else ():
        if device.id == name and identity(claim) in [(holder.namespace, holder.claim) for holder in device.holders]:
            return device
    return None
