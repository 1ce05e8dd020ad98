"""The daemon of `plugwright run`: serves the resources of the operator's file."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from plugwright import serve
from plugwright.cli import logs
from plugwright.config.reload import DaemonConfig
from plugwright.sdk.release_state import with_own_state
from plugwright.sdk.run import log_start, run_until_stopped
from plugwright.sdk.settings import Registration, Settings

__all__ = ["configured", "serve_file"]


def serve_file(values: Mapping[str, Any]) -> None:
    """Serves until SIGTERM or SIGINT, with these values of the settings; `config` is the file."""
    settings, path = configured(values), values["config"]
    with logs.failure_in_log():
        config = DaemonConfig(path, settings.state_dir)
        log_start(config.plugins, config=str(path), sha256=config.state.sha256)
        settings = replace(settings, cordons=config.cordons)
        run_until_stopped(config.plugins, settings, config.reload, config.watching, serve.resource_driver)


def configured(values: Mapping[str, Any]) -> Settings:
    """The settings with these values and the directories of the release; applies those of the log."""
    rest = {name: value for name, value in values.items() if name != "config"}
    logs.configure(str(rest.pop("log_format")), str(rest.pop("log_level")))
    rest |= {"registration": Registration(rest["registration"]), "listen_report": rest["listen_report"] == "on"}
    return with_own_state(Settings(**rest))
