"""The facade's run() and serving(): plugins served through the device plugin API, by claims, or by both.

`sdk` serves the one, `dra` the other, and neither is loaded where it is not needed.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plugwright.sdk import driver_names
from plugwright.sdk import run as sdk_run
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ResourceDriver, ServeMode, ServeSettings
from plugwright.sdk.settings import Settings
from plugwright.system import cpython

__all__ = ["needs_driver", "resource_driver", "run", "serving"]


def run(*plugins: Plugin, settings: Settings | None = None, serve: str | ServeSettings = "") -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() again.

    `serve` is `device-plugin`, `dra` or `both`; empty leaves it to each plugin. Settings that are left at their
    defaults come from the same variables as those of `plugwright run`. A mistake ends the program with one line.
    """
    sdk_run.run(*_served(plugins, serve), settings=settings, drivers=resource_driver)


@asynccontextmanager
async def serving(
    *plugins: Plugin, settings: Settings | None = None, serve: str | ServeSettings = ""
) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; touches no signals."""
    plugins = _served(plugins, serve)
    async with sdk_run.serving(*plugins, settings=settings, drivers=resource_driver) as daemon:
        yield daemon


def resource_driver(runtime: ResourceRuntime) -> ResourceDriver | None:
    """The driver of a resource that claims are served from; None for one that needs none."""
    if not needs_driver(runtime):
        return None
    cpython.allow_ssl()
    from plugwright.dra.driver import Driver  # a client of the API server, which the device plugin API does not need

    return Driver(runtime)


def needs_driver(runtime: ResourceRuntime) -> bool:
    """Whether claims are served from a resource, or earlier claims may still hold its devices."""
    return runtime.serve.api is not ServeMode.DEVICE_PLUGIN or _may_have_claims(runtime)


def _may_have_claims(runtime: ResourceRuntime) -> bool:
    driver = runtime.serve.driver or driver_names.driver_name(runtime.resource)
    if not (runtime.settings.paths.plugins / driver).is_dir():
        return False
    from plugwright.dra.driver_paths import DriverPaths, may_have_claims  # only if there was a driver

    return may_have_claims(DriverPaths.of(runtime.settings, driver))


def _served(plugins: tuple[Plugin, ...], serve: str | ServeSettings) -> tuple[Plugin, ...]:
    for plugin in plugins if serve else ():
        plugin.serve = ServeSettings.of(serve)
    return plugins
