"""`plugwright dra`: the devices that DRA drivers publish in a cluster, and the claims that hold them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from plugwright.cli.output import Cell, document_printed, output_option, table_lines
from plugwright.errors import PeerRefused
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient, Document
from plugwright.model import natural_order
from plugwright.text import clean

__all__ = ["dra"]

_GROUP = "/apis/resource.k8s.io/v1"
_SLICE_COLUMNS = ["NODE", "DRIVER", "DEVICE", "TAINTS", "CLAIM", "ATTRIBUTES"]
_CLAIM_COLUMNS = ["NAMESPACE", "CLAIM", "STATE", "NODE", "DRIVER", "DEVICES", "PODS"]
_cluster_options = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Kubeconfig of the cluster.  [default: as kubectl; in a pod, its service account]",
    ),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    click.option("--node", "nodes", multiple=True, metavar="NODE", help="Only of this node; may be repeated."),
    click.option("--driver", "drivers", multiple=True, metavar="NAME", help="Only of this driver; may be repeated."),
    output_option(),
)


def _with_options(command: Any) -> Any:
    for option in reversed(_cluster_options):
        command = option(command)
    return command


@click.group(epilog="Example:  plugwright dra slices --node worker-1")
def dra() -> None:
    """Show DRA on any cluster: the published devices, and the claims that hold them."""


@dra.command(epilog="Example:  plugwright dra slices --driver tape.example.com --output json")
@_with_options
def slices(
    kubeconfig: Path | None, context: str | None, nodes: Sequence[str], drivers: Sequence[str], output: str
) -> None:
    """List the devices in ResourceSlices, with taints and claims.

    Reports pools that the scheduler cannot use because slices are missing.
    """
    found = _read(kubeconfig, context, ("resourceslices", "resourceclaims"))
    devices = published_devices(*found)
    shown = [device for device in devices if _is_wanted(device, nodes, drivers)]
    incomplete = [text for pool, text in incomplete_pools(found[0]) if _is_wanted(pool, nodes, drivers)]
    if document_printed({"devices": shown, "incomplete": incomplete}, output):
        return
    for text in incomplete:
        click.echo(click.style(text, fg="red"))
    rows = [_slice_row(device) for device in shown]
    click.echo("\n".join(table_lines(_SLICE_COLUMNS, rows)) if rows else "no devices in ResourceSlices")


@dra.command(epilog="Example:  plugwright dra claims --node worker-1")
@_with_options
def claims(
    kubeconfig: Path | None, context: str | None, nodes: Sequence[str], drivers: Sequence[str], output: str
) -> None:
    """List ResourceClaims, with their devices and their pods."""
    (documents,) = _read(kubeconfig, context, ("resourceclaims",))
    shown = [claim for claim in listed_claims(documents) if _has_wanted(claim, nodes, drivers)]
    if document_printed({"claims": shown}, output):
        return
    rows = [_claim_row(claim) for claim in shown]
    click.echo("\n".join(table_lines(_CLAIM_COLUMNS, rows)) if rows else "no ResourceClaims")


def _read(kubeconfig: Path | None, context: str | None, kinds: Sequence[str]) -> list[list[Document]]:
    with BlockingClient(ClusterAccess.choose(kubeconfig, context)) as client:
        try:
            return [client.list(f"{_GROUP}/{kind}") for kind in kinds]
        except PeerRefused as error:
            if error.code == "NotFound":
                raise PeerRefused("NotFound", "the cluster has no resource.k8s.io/v1: it is older than 1.34") from error
            raise


def published_devices(slices: Iterable[Document], claims: Iterable[Document]) -> list[dict[str, Any]]:
    """The devices of the newest generation of each pool, with the claims that hold them."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for claim in listed_claims(claims):
        for device in claim["devices"]:
            key = device["driver"], device["pool"], device["device"]
            holders.setdefault(key, []).append(f"{claim['namespace']}/{claim['name']}")
    devices = [
        _published(spec, device, holders)
        for specs in _newest(slices).values()
        for spec in specs
        for device in spec.get("devices") or ()
    ]
    return sorted(devices, key=lambda item: (item["node"], item["driver"], natural_order(item["device"])))


def _published(
    spec: Document, device: Document, holders: Mapping[tuple[str, str, str], Sequence[str]]
) -> dict[str, Any]:
    key = str(spec["driver"]), str(spec["pool"]["name"]), str(device["name"])
    return {
        "node": str(spec.get("nodeName") or device.get("nodeName") or ""),
        "driver": key[0],
        "pool": key[1],
        "device": key[2],
        "taints": [dict(taint) for taint in device.get("taints") or ()],
        "claims": sorted(holders.get(key, ())),
        "attributes": {name: _value(value) for name, value in (device.get("attributes") or {}).items()},
        "capacity": {name: value.get("value") for name, value in (device.get("capacity") or {}).items()},
    }


def incomplete_pools(slices: Iterable[Document]) -> Iterator[tuple[dict[str, Any], str]]:
    """The pools that the scheduler ignores, with the reasons."""
    for (driver, pool), specs in _newest(slices).items():
        wanted = specs[0]["pool"].get("resourceSliceCount")
        if wanted != len(specs):
            about = {"driver": driver, "pool": pool, "node": str(specs[0].get("nodeName") or "")}
            text = f"pool {pool} of {driver} is incomplete: it has {len(specs)} of {wanted} slices, so none is used"
            yield about, clean(text)


def _newest(slices: Iterable[Document]) -> dict[tuple[str, str], list[Document]]:
    """By driver and pool, the specs of its slices with the highest generation, in the order of their names."""
    pools: dict[tuple[str, str], list[Document]] = {}
    for document in sorted(slices, key=lambda document: str(document["metadata"]["name"])):
        spec = document["spec"]
        pools.setdefault((str(spec["driver"]), str(spec["pool"]["name"])), []).append(spec)
    newest = {}
    for key, specs in sorted(pools.items()):
        highest = max(spec["pool"].get("generation", 0) for spec in specs)
        newest[key] = [spec for spec in specs if spec["pool"].get("generation", 0) == highest]
    return newest


def listed_claims(documents: Iterable[Document]) -> list[dict[str, Any]]:
    listed = []
    for document in documents:
        metadata, status = document["metadata"], document.get("status") or {}
        allocation, reserved = status.get("allocation"), status.get("reservedFor") or []
        results = ((allocation or {}).get("devices") or {}).get("results") or []
        state = "reserved" if reserved else "allocated" if allocation is not None else "pending"
        keys = ("driver", "pool", "device", "request", "shareID", "adminAccess")
        listed.append(
            {
                "namespace": str(metadata["namespace"]),
                "name": str(metadata["name"]),
                "state": "deleting" if metadata.get("deletionTimestamp") else state,
                "devices": [{key: result[key] for key in keys if key in result} for result in results],
                "pods": sorted(str(user.get("name")) for user in reserved if user.get("resource") == "pods"),
            }
        )
    return sorted(listed, key=lambda claim: (claim["namespace"], claim["name"]))


def _is_wanted(item: Mapping[str, Any], nodes: Sequence[str], drivers: Sequence[str]) -> bool:
    return (not nodes or item["node"] in nodes) and (not drivers or item["driver"] in drivers)


def _has_wanted(claim: Mapping[str, Any], nodes: Sequence[str], drivers: Sequence[str]) -> bool:
    """Whether a claim matches. A pool has the name of its node; a claim without devices is on no node."""
    if not nodes and not drivers:
        return True
    return any(_is_wanted({**device, "node": device["pool"]}, nodes, drivers) for device in claim["devices"])


def _slice_row(device: Mapping[str, Any]) -> list[Cell]:
    taints = ", ".join(
        f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}" for taint in device["taints"]
    )
    facts = {**device["attributes"], **device["capacity"]}
    attributes = " ".join(f"{key}={value}" for key, value in sorted(facts.items()))
    cells = [device["node"] or "-", device["driver"], device["device"], taints or "-"]
    return [*map(clean, cells), clean(", ".join(device["claims"]) or "-"), clean(attributes or "-")]


def _claim_row(claim: Mapping[str, Any]) -> list[Cell]:
    devices = claim["devices"]
    pools, drivers = ({str(device[key]) for device in devices} for key in ("pool", "driver"))
    names = sorted({str(device["device"]) for device in devices}, key=natural_order)
    cells = [claim["namespace"], claim["name"], claim["state"]]
    columns = (sorted(pools), sorted(drivers), names, claim["pods"])
    return [clean(cell) for cell in (*cells, *(", ".join(column) or "-" for column in columns))]


def _value(attribute: Mapping[str, Any]) -> object:
    """The single value of an attribute, of whatever type."""
    return next(iter(attribute.values()), None)
