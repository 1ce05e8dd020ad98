"""Which devices do pods hold? The kubelet's checkpoint and its pod-resources API are asked; both are only read."""

import logging
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.protocol import checkpoint, pod_resources

__all__ = ["held_by_checkpoint", "held_by_pods"]

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0


def held_by_checkpoint(path: Path, resource: str) -> dict[str, tuple[int, ...]] | None:
    """The ids that containers were given of `resource`, with their NUMA nodes; None if that cannot be known."""
    try:
        return checkpoint.held(checkpoint.decode(path.read_bytes()), resource)
    except FileNotFoundError:
        return {} if path.parent.is_dir() else None  # a kubelet that has given out nothing yet has written nothing
    except (OSError, PlugwrightError) as error:
        logger.debug("checkpoint not readable", extra={"path": str(path), "error": str(error)})
        return None


async def held_by_pods(socket: Path, resource: str) -> set[str] | None:
    """The ids that containers of active pods hold of `resource`; None if that cannot be known.

    Asking has an effect: the kubelet frees what pods held that have ended.
    """
    try:
        async with pod_resources.connect(socket) as kubelet:
            holdings = await kubelet.holdings(timeout=_TIMEOUT)
    except (OSError, PlugwrightError) as error:
        logger.debug("pod-resources not readable", extra={"error": str(error)})
        return None
    return {holding.device_id for holding in holdings if holding.resource == resource}
