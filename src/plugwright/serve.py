"""The facade's run() and serving(): serve plugins through the device plugin API, by claims, or by both.

`sdk` serves the device plugin API, `dra` claims; `dra` is only loaded if needed.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plugwright.dra import driver_paths
from plugwright.dra.driver_paths import DriverPaths
from plugwright.sdk import driver_names
from plugwright.sdk import run as sdk_run
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ResourceDriver, ServeMode, ServeSettings
from plugwright.sdk.settings import Settings
from plugwright.system import cpython

__all__ = ["former_driver", "needs_driver", "resource_driver", "run", "serving"]


def run(*plugins: Plugin, settings: Settings | None = None, serve: str | ServeSettings = "") -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() again.

    `serve` is `device-plugin`, `dra` or `both`; empty leaves the choice to each plugin. Settings left at their defaults
    come from the same variables as those of `plugwright run`. An error ends the program with one line.
    """
    sdk_run.run(*_served(plugins, serve), settings=settings, drivers=resource_driver)


@asynccontextmanager
async def serving(
    *plugins: Plugin, settings: Settings | None = None, serve: str | ServeSettings = ""
) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; handles no signals."""
    plugins = _served(plugins, serve)
    async with sdk_run.serving(*plugins, settings=settings, drivers=resource_driver) as daemon:
        yield daemon


def resource_driver(runtime: ResourceRuntime) -> ResourceDriver | None:
    """The driver of a resource with present or possible earlier claims; otherwise None."""
    if runtime.serve.api is ServeMode.DEVICE_PLUGIN:
        driver = former_driver(runtime)
        # A pod's service account has rights only for the drivers in its configuration.
        if not driver or not (runtime.settings.kubeconfig or os.environ.get("KUBECONFIG")):
            return _leaving(runtime, driver) if driver else None
    cpython.allow_ssl()
    from plugwright.dra.driver import Driver  # a client of the API server, which the device plugin API does not need

    return Driver(runtime)


def needs_driver(runtime: ResourceRuntime) -> bool:
    """Whether a resource serves claims, or earlier claims could still hold its devices."""
    return runtime.serve.api is not ServeMode.DEVICE_PLUGIN or bool(former_driver(runtime))


def former_driver(runtime: ResourceRuntime) -> str:
    """The driver whose claims could hold devices of a resource of the device plugin API; empty if there is none."""
    settings = runtime.settings
    usual = runtime.serve.driver or driver_names.driver_name(runtime.resource)
    for driver in (usual, *driver_paths.recorded_drivers(settings.paths.plugins, runtime.resource)):
        if driver_paths.may_have_claims(DriverPaths.of(settings, driver)):
            return driver
    return ""


def _leaving(runtime: ResourceRuntime, driver: str) -> ResourceDriver:
    from plugwright.dra.leaving_claims import LeavingDriver  # only if there was a driver

    return LeavingDriver(runtime, driver)


def _served(plugins: tuple[Plugin, ...], serve: str | ServeSettings) -> tuple[Plugin, ...]:
    for plugin in plugins if serve else ():
        plugin.serve = ServeSettings.of(serve)
    return plugins
