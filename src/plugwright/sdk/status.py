"""The shapes of a daemon's status, as the control socket sends it and `plugwright status` prints it.

`control` fills them; a reader of this module loads no server.
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
    discovery: str  # why discover() fails, empty if it does not
    refused: str  # why the latest list was refused, empty if it was not
    devices: list[DeviceStatus]


class DaemonStatus(TypedDict):
    ready: bool
    registration: str
    directory: str
    stalled: str  # why the event loop is blocked, empty if it is not
    stalls: int
    log_lines_dropped: int
    resources: list[ResourceStatus]
