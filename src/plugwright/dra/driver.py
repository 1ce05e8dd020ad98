"""The DRA driver of one resource."""

from collections.abc import Mapping

from plugwright.errors import ConfigError
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.sdk.serve_settings import DriverState
from plugwright.system.concurrency import Latest

__all__ = ["Driver"]


class Driver:
    """Implements `sdk.serve_settings.ResourceDriver`."""

    def __init__(self, runtime: ResourceRuntime) -> None:
        self._runtime = runtime
        self.state = Latest(DriverState("starting"))

    async def run(self) -> None:
        raise ConfigError(f"{self._runtime.resource} cannot be served by claims yet")

    def status(self) -> Mapping[str, object]:
        return {}

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        raise ConfigError(f"no command {name!r}")
