"""The events of a device's history in words."""

from collections.abc import Mapping
from typing import Any

__all__ = ["event_text", "seconds_of"]


def event_text(event: Mapping[str, Any]) -> str:
    """An event such as `allocated to team-a/train-7/main` or `Unhealthy: Xid 79 (xid-79)`."""
    names = (str(event.get(key) or "") for key in ("namespace", "pod", "container"))
    pod = "/".join(filter(None, names)) if event.get("pod") else ""
    claim = f"claim {event.get('namespace')}/{event['claim']}" if event.get("claim") else ""
    holder = pod or claim or "a pod that is not known"
    reason = f": {event['reason']}" if event.get("reason") else ""
    match event.get("kind"):
        case "allocated":
            return f"allocated to {holder}"
        case "released":
            return f"released by {holder}"
        case "health":
            code = f" ({event['code']})" if event.get("code") else ""
            return f"{event.get('health')}{reason}{code}"
        case "cordoned":
            return f"cordoned{reason}" + (f" (by {event['by']})" if event.get("by") else "")
    return str(event.get("kind"))


def seconds_of(moment: str) -> str:
    """A time in RFC 3339 without fractions of a second; any other text as it is."""
    begin, dot, fraction = moment.partition(".")
    return f"{begin}Z" if dot and fraction.endswith("Z") else moment
