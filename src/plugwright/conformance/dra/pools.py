"""Pools as schedulers read them from slices: the newest generation counts, once all of its slices exist."""

from collections.abc import Iterable

from plugwright.conformance.dra.observed_node import Document

__all__ = ["generation", "incompleteness", "newest", "specs_by_pool"]


def specs_by_pool(slices: Iterable[Document]) -> dict[str, list[Document]]:
    """The specs of one driver's slices."""
    found: dict[str, list[Document]] = {}
    for document in slices:
        found.setdefault(document["spec"]["pool"]["name"], []).append(document["spec"])
    return found


def generation(spec: Document) -> int:
    return int(spec["pool"].get("generation") or 0)


def newest(specs: list[Document]) -> list[Document]:
    highest = max(map(generation, specs))
    return [spec for spec in specs if generation(spec) == highest]


def incompleteness(specs: list[Document]) -> str:
    """Errors in a pool's counts; empty if there are none."""
    counted = newest(specs)
    counts = {int(spec["pool"]["resourceSliceCount"]) for spec in counted}
    if counts != {len(counted)}:
        shown = ", ".join(map(str, sorted(counts)))
        return f"{len(counted)} slices of generation {generation(counted[0])} with resourceSliceCount {shown}"
    return ""
