"""The ResourceSlices of one pool: how devices are put into them, and the changes that lead to the wanted slices.

Plain functions over documents of resource.k8s.io/v1; `publisher` sends the requests. A scheduler uses only the slices
of a pool's highest generation, and only if there are as many of them as each one states. So a change of a single slice
is made in place, and any other change under the next generation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from plugwright.dra.resource_slices.slice_comparison import Document, comparable
from plugwright.errors import InvalidValue

__all__ = ["Plan", "Pool", "PoolContent", "check", "plan", "published_content", "wanted_slices"]

_DEVICES, _DEVICES_WITH_MORE = 128, 64  # in one slice
_COUNTER_SETS = 8
_MORE = ("taints", "consumesCounters")
_LISTS = frozenset({"ints", "strings", "bools", "versions"})
_INDEX = re.compile(r"([0-9a-f]{5,8})-")


class PoolContent(msgspec.Struct, frozen=True):
    """Devices in the order in which the scheduler tries them, and the counter sets that they consume: API documents."""

    devices: tuple[Document, ...] = ()
    counter_sets: tuple[Document, ...] = ()


class Pool(msgspec.Struct, frozen=True):
    """A pool of a driver on one node; `node_uid` is that of its Node, or empty if unknown."""

    driver: str
    node: str
    name: str
    node_uid: str = ""

    @property
    def owner(self) -> Document:
        """The owner reference, by which the slices are deleted with the Node."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid, "controller": True}


class Plan(msgspec.Struct, frozen=True):
    """The requests that lead to the wanted pool, in this order; `update` and `create` contain the documents to send."""

    generation: int
    delete: tuple[Document, ...] = ()
    update: tuple[Document, ...] = ()
    create: tuple[Document, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def check(content: PoolContent) -> None:
    """Raises InvalidValue for content that no scheduler can use. API servers accept it, as they see single slices."""
    _check_names("device", content.devices)
    _check_names("counter set", content.counter_sets)
    sets = {str(one["name"]): one for one in content.counter_sets}
    for device in content.devices:
        for consumption in device.get("consumesCounters") or ():
            name = str(consumption.get("counterSet"))
            if name not in sets:
                raise InvalidValue(
                    f"device {device['name']!r} consumes the counter set {name!r}, which is not in the pool"
                )
            missing = sorted(consumption["counters"].keys() - sets[name]["counters"].keys())
            if missing:
                raise InvalidValue(f"device {device['name']!r} consumes {missing[0]!r}, which {name!r} does not have")


def wanted_slices(pool: Pool, content: PoolContent, existing: Sequence[Document] = ()) -> tuple[Document, ...]:
    """The slices of a pool without generation; a single empty one if there are no devices, to show the driver."""
    most = _devices_per_slice(content.devices, existing)
    parts: list[Document] = [{"sharedCounters": list(part)} for part in _parts(content.counter_sets, _COUNTER_SETS)]
    parts += [{"devices": list(part)} for part in _parts(content.devices, most)]
    parts = parts or [{}]
    return tuple(_wanted(pool, index, len(parts), part) for index, part in enumerate(parts))


def _wanted(pool: Pool, index: int, count: int, part: Document) -> Document:
    metadata: Document = {"generateName": f"{index:05x}-{pool.driver}-{pool.node}-"}
    if pool.node_uid:
        metadata["ownerReferences"] = [pool.owner]
    place = {"name": pool.name, "generation": 0, "resourceSliceCount": count}
    spec = {"driver": pool.driver, "nodeName": pool.node, "pool": place, **part}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _devices_per_slice(devices: Sequence[Document], existing: Sequence[Document]) -> int:
    """64 if a device has fields that halve the limit, or if the pool already has slices of that size.

    Otherwise the first taint would move devices from slice to slice, its end would move them back, and so on.
    """
    if any(_has_more(device) for device in devices):
        return _DEVICES_WITH_MORE
    sizes = [len(one["spec"]["devices"]) for one in existing if one["spec"].get("devices")]
    return _DEVICES_WITH_MORE if len(sizes) > 1 and max(sizes) <= _DEVICES_WITH_MORE else _DEVICES


def _has_more(device: Document) -> bool:
    if any(device.get(name) for name in _MORE):
        return True
    return any(_LISTS & value.keys() for value in (device.get("attributes") or {}).values())


def plan(
    existing: Iterable[Document],
    wanted: Sequence[Document],
    accepted: Mapping[str, tuple[object, object]] | None = None,
) -> Plan:
    """`accepted`, by uid: the sent content and the API server's version of it, which count as equal."""
    name = wanted[0]["spec"]["pool"]["name"]
    slices = sorted(existing, key=lambda one: str(one["metadata"]["name"]))
    generation = max((_generation(one) for one in slices if one["spec"]["pool"]["name"] == name), default=0)
    current: dict[int, Document] = {}
    obsolete = []
    for one in slices:
        index = _index(one)
        is_current = one["spec"]["pool"]["name"] == name and _generation(one) == generation
        if is_current and index is not None and index < len(wanted) and index not in current:
            current[index] = one
        else:
            obsolete.append(one)
    changed = [index for index in current if not _is_same(current[index], wanted[index], accepted or {})]
    missing = [index for index in range(len(wanted)) if index not in current]
    # An extra slice made the pool unusable, and a scheduler does not react to its deletion.
    is_broken = not changed and any(_generation(one) == generation for one in obsolete)
    if missing or len(changed) > 1 or is_broken:
        generation, changed = generation + 1, sorted(current)
    return Plan(
        generation,
        tuple(obsolete),
        tuple(_updated(current[index], wanted[index], generation) for index in sorted(changed)),
        tuple(_numbered(wanted[index], generation) for index in missing),
    )


def _is_same(existing: Document, wanted: Document, accepted: Mapping[str, tuple[object, object]]) -> bool:
    metadata = existing["metadata"]
    owners = wanted["metadata"].get("ownerReferences")
    if owners and not any(owner.get("uid") == owners[0]["uid"] for owner in metadata.get("ownerReferences") or ()):
        return False
    if existing["spec"]["pool"].get("resourceSliceCount") != wanted["spec"]["pool"]["resourceSliceCount"]:
        return False
    there, sent = comparable(existing["spec"]), comparable(wanted["spec"])
    return there == sent or accepted.get(str(metadata["uid"])) == (sent, there)


def _updated(existing: Document, wanted: Document, generation: int) -> Document:
    owners = wanted["metadata"].get("ownerReferences")
    metadata = {**existing["metadata"], **({"ownerReferences": owners} if owners else {})}
    return {**_numbered(wanted, generation), "metadata": metadata}


def _numbered(wanted: Document, generation: int) -> Document:
    spec = wanted["spec"]
    return {**wanted, "spec": {**spec, "pool": {**spec["pool"], "generation": generation}}}


def published_content(existing: Iterable[Document], pool: str) -> PoolContent | None:
    """The content that the slices of a pool offer; None if the pool is incomplete."""
    slices = [one for one in existing if one["spec"]["pool"]["name"] == pool]
    generation = max(map(_generation, slices), default=0)
    current = sorted((one for one in slices if _generation(one) == generation), key=lambda one: one["metadata"]["name"])
    if not current or any(one["spec"]["pool"].get("resourceSliceCount") != len(current) for one in current):
        return None
    devices = tuple(device for one in current for device in one["spec"].get("devices") or ())
    return PoolContent(devices, tuple(part for one in current for part in one["spec"].get("sharedCounters") or ()))


def _generation(one: Document) -> int:
    return int(one["spec"]["pool"].get("generation") or 0)


def _index(one: Document) -> int | None:
    matched = _INDEX.match(str(one["metadata"]["name"]))
    return int(matched[1], 16) if matched else None


def _parts(documents: Sequence[Document], most: int) -> Iterator[Sequence[Document]]:
    for start in range(0, len(documents), most):
        yield documents[start : start + most]


def _check_names(kind: str, documents: Sequence[Document]) -> None:
    names: set[str] = set()
    for document in documents:
        name = str(document["name"])
        if name in names:
            raise InvalidValue(f"a {kind} must be in a pool once, got {name!r} twice")
        names.add(name)
