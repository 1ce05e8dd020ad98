"""The configuration in force while its file and the machine change.

An invalid new version of the file is refused, and the old one stays. A resource name such as `nvidia.com/mig-{profile}`
is a template: it becomes plain entries, one for each name, as soon as the machine has devices for it. The names are
those that the family finds (`sdk.device_family.NameTemplates`).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.sdk.device_family import NameTemplates, ResourceEntry
from plugwright.sdk.plugin import Plugin
from plugwright.system.inotify import settled_changes

__all__ = ["CurrentConfig", "ResourceNames"]

logger = logging.getLogger(__name__)

_Members = dict[str, ResourceEntry[Any]]


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


class ResourceNames:
    """The names of one daemon, over all versions of its file."""

    def __init__(self) -> None:
        self._templates: dict[str, NameTemplates[Any]] = {}  # by the keys of their families
        self._members: dict[str, tuple[ResourceEntry[Any], _Members]] = {}
        self._watched: set[tuple[str, str]] = set()
        self._config: Config | None = None
        self._expanded: Config | None = None

    def expand(self, config: Config) -> Config:
        """The same with plain entries for its templates, as far as the machine is known."""
        self._config = config
        entries = [member for entry in config.file.resources for member in self._members_of(entry)]
        self._expanded = replace(config, file=replace(config.file, resources=entries))
        return self._expanded

    def join(self, plugins: Sequence[Plugin]) -> None:
        """Lets plugins share the monitors that look for names."""
        for templates in self._templates.values():
            templates.join(plugins)

    async def follow(self, stack: AsyncExitStack, changed: Callable[[], None]) -> None:
        """Watches the machine for new names until `stack` ends; once more for every file that was expanded since."""

        def expand_again() -> None:
            before = self._expanded
            if self._config is not None and before is not None and self.expand(self._config).file != before.file:
                changed()

        for key, templates in self._templates.items():
            for name, watching in sorted(templates.monitors().items()):
                if (key, name) not in self._watched:
                    await stack.enter_async_context(watching(expand_again))
                    self._watched.add((key, name))

    def _members_of(self, entry: ResourceEntry[Any]) -> list[ResourceEntry[Any]]:
        if not entry.is_template:
            return [entry]
        if entry.key not in self._templates:
            self._templates[entry.key] = entry.family.name_templates()
        known = self._members.get(entry.name)
        if known is None or known[0] != entry:
            known = self._members[entry.name] = (entry, {})
        for name, settings in self._templates[entry.key].members(entry).items():
            # A name that was found stays when its devices go: pods may hold them.
            known[1][name] = replace(entry, name=name, settings=settings)
        return [known[1][name] for name in sorted(known[1])]
