"""The program behind `plugwright page`: serves the page until it is stopped."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from plugwright.fleet.daemons import DaemonChoice, cluster_access, find_all
from plugwright.system import garbage
from plugwright.system.stop_signals import stop_on_signals
from plugwright.web.live_fleet import FleetSource
from plugwright.web.page_server import serving_page

__all__ = ["run"]


def run(
    choice: DaemonChoice,
    environment: Mapping[str, str],
    ready: Callable[[str, str], None],
    port: int = 0,
    timeout: float | None = None,
) -> None:
    """Calls `ready` once, with the page's address and that of the API server."""
    access = cluster_access(choice, environment)
    source = FleetSource(access=access, find=lambda: find_all(choice, environment))
    asyncio.run(_serve(source, port, timeout, lambda address: ready(address, access.url)))


async def _serve(source: FleetSource, port: int, timeout: float | None, ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with serving_page(source, port, at_once=True) as address:
            with garbage.short_pauses():
                ready(address)
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await stop.wait()
