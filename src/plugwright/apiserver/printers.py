"""Tables as printed by `kubectl get`: columns, rows and ages.

The module of each kind in `kinds` defines its columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from plugwright.apiserver import clock
from plugwright.apiserver.store import Object

__all__ = ["AGE", "NAME", "Column", "age", "none_if_empty", "table"]


@dataclass(frozen=True, slots=True)
class Column:
    """`cell` makes the cell of an object at a time; `wide` columns appear only with --output=wide."""

    name: str
    cell: Callable[[Object, datetime], object]
    wide: bool = False
    type: str = "string"


def table(columns: Sequence[Column], objects: Sequence[Object], now: datetime, include: str = "Metadata") -> Object:
    """`include` is the part of each object that its row carries: `None`, `Metadata` or `Object`."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.name == "Name" else "",
                "description": "",
                "priority": int(column.wide),
            }
            for column in columns
        ],
        "rows": [
            {"cells": [column.cell(content, now) for column in columns], **_included(content, include)}
            for content in objects
        ],
    }


def _included(content: Object, include: str) -> Object:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": content}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": content["metadata"]}
    return {"object": partial}


def none_if_empty(value: object) -> str:
    return str(value) if value else "<none>"


def age(since: object, now: datetime) -> str:
    """A duration in kubectl's format: `45s`, `4m5s`, `3h`."""
    if not isinstance(since, str):
        return "<unknown>"
    seconds = max(0, int((now - clock.parse(since)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two_units(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two_units(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two_units(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else _two_units(days // 365, "y", days % 365, "d")


def _two_units(count: int, unit: str, rest: int, smaller: str) -> str:
    return f"{count}{unit}{rest}{smaller}" if rest else f"{count}{unit}"


NAME = Column("Name", lambda content, _: content["metadata"]["name"])
AGE = Column("Age", lambda content, now: age(content["metadata"].get("creationTimestamp"), now))
