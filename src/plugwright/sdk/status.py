"""What a daemon tells of itself, as plain data: what the control socket sends and `status` prints.

Made in `reporting`; here are only the shapes, so that who reads a report loads no server.
"""

from typing import TypedDict

__all__ = ["DaemonStatus", "DeviceStatus", "ResourceStatus"]


class DeviceStatus(TypedDict):
    id: str
    health: str
    reason: str
    since: float
    numa: list[int]
    attributes: dict[str, object]


class ResourceStatus(TypedDict):
    name: str
    state: str
    reason: str
    since: float
    endpoint: str
    streams: int
    registrations: int
    discovery: str  # why discovery fails, empty if it does not
    refused: str  # why the newest list was refused, empty if it was not
    devices: list[DeviceStatus]


class DaemonStatus(TypedDict):
    ready: bool
    registration: str
    directory: str
    stalled: str
    stalls: int
    resources: list[ResourceStatus]
