"""What an earlier run of a driver has left on this node: whether claims may still have devices of a resource.

Asked where a resource is served by the device plugin API, by its files alone and without changing them. A file that
cannot be read may have anything in it.
"""

import json
from pathlib import Path
from typing import Any

from plugwright.dra.api_split.moves import Phase
from plugwright.dra.api_split.split_file import state_path
from plugwright.sdk.settings import Settings

__all__ = ["CHECKPOINT", "may_have_claims"]

CHECKPOINT = "checkpoint.json"


def may_have_claims(settings: Settings, driver: str) -> bool:
    """Also where no claim is prepared, but the scheduler may have given a device to one that is on its way."""
    directory = settings.paths.plugins / driver
    split = _read(state_path(settings.state_dir, directory, driver), line=0)
    claims = _read(directory / CHECKPOINT, line=1)
    if split is None or claims is None:
        return True
    devices = split.get("devices") or {}
    return bool(claims.get("claims")) or any(placement.get("phase") != Phase.LISTED for placement in devices.values())


def _read(path: Path, line: int) -> dict[str, Any] | None:
    """The document in a line of the file: empty without one, None where it cannot be read."""
    try:
        document = json.loads(path.read_text().splitlines()[line])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, IndexError):
        return None
    return document if isinstance(document, dict) else None
