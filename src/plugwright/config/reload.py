"""The configuration in force while its file changes: an invalid new version is refused, and the old one stays."""

import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.system.inotify import settled_changes

__all__ = ["CurrentConfig"]

logger = logging.getLogger(__name__)


class CurrentConfig:
    """`value` is the last valid version of the file; `expand` completes each version that is read."""

    def __init__(self, path: Path, config: Config, expand: Callable[[Config], Config] = lambda config: config) -> None:
        self.value = expand(config)
        self._path, self._expand = path, expand
        self._refused = ""

    def reload(self) -> bool:
        """Reads the file again; returns whether the configuration has changed."""
        before = self.value
        try:
            self.value = self._expand(schema.load(self._path))
        except ConfigError as error:
            if str(error) != self._refused:
                logger.error("new configuration refused, the old one stays", extra={"error": str(error)})
            self._refused = str(error)
            return False
        self._refused = ""
        return self.value.file != before.file

    def file_changes(self) -> AsyncGenerator[None, None]:
        """Yields at first, and whenever the file may have changed. Close it with `aclosing`."""
        # A mounted ConfigMap changes by a link beside the file; any other link may lead to another directory.
        return settled_changes(self._path.absolute().parent, self._path.resolve().parent)
