"""The resources that names such as `nvidia.com/mig-{profile}` stand for on this machine.

The names are those that the family finds (`sdk.device_family.NameTemplates`), as soon as the machine has devices for
them. One that is no resource name, or that another entry of the file has, is left out with its reason: a GPU's odd name
must not take other resources out of service.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from msgspec.structs import replace

from plugwright.config.schema import Config
from plugwright.errors import InvalidValue
from plugwright.model import Resource
from plugwright.sdk.device_family import NameTemplates, ResourceEntry
from plugwright.sdk.plugin import Plugin
from plugwright.system.log_once import LogOnce

__all__ = ["Expansion", "TemplateNames"]

logger = logging.getLogger(__name__)

_Members = dict[str, ResourceEntry[Any]]


class Expansion(msgspec.Struct, frozen=True):
    """A configuration with plain entries for its templates."""

    original: Config
    config: Config
    refused: Mapping[str, str]  # names that were left out, with the reasons
    members: Mapping[str, tuple[ResourceEntry[Any], _Members]] = msgspec.field(
        default_factory=dict
    )  # by the templates' names

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The templates that the machine has no device for."""
        return tuple(sorted(template for template, (_, members) in self.members.items() if not members))


class TemplateNames:
    """The names of one daemon, over all versions of its file. `current` is the version in force."""

    def __init__(self, config: Config) -> None:
        self._templates: dict[str, NameTemplates[Any]] = {}  # by the keys of their families
        self._watched: set[tuple[str, str]] = set()
        self._problems = LogOnce(logger)
        self.current = Expansion(config, config, {})
        self.current = self.expand(config)

    def expand(self, config: Config) -> Expansion:
        """With entries for all names that are known by now; a name that was found stays when its devices go."""
        members = {entry.name: (entry, self._members(entry)) for entry in config.file.resources if entry.is_template}
        taken = {entry.name: entry for entry in config.file.resources if not entry.is_template}
        refused: dict[str, str] = {}
        entries: list[ResourceEntry[Any]] = []
        for entry in config.file.resources:
            for name, member in sorted(members[entry.name][1].items()) if entry.is_template else [(entry.name, entry)]:
                reason = _reason_against(name, taken.setdefault(name, member), member)
                if reason:
                    refused[name] = f"made of {entry.name}: {reason}"
                else:
                    entries.append(member)
        self._log(refused)
        return Expansion(config, replace(config, file=replace(config.file, resources=entries)), refused, members)

    def join(self, plugins: Sequence[Plugin]) -> None:
        """Lets plugins share the monitors that look for names."""
        for templates in self._templates.values():
            templates.join(plugins)

    async def follow(self, stack: AsyncExitStack, changed: Callable[[], None]) -> None:
        """Watches the machine for new names until `stack` ends; again for every version with other templates."""

        def expand_again() -> None:
            try:
                now = self.expand(self.current.original)
            except Exception:
                logger.exception("resource names not found")
                return
            if (now.config.file, now.refused) != (self.current.config.file, self.current.refused):
                changed()

        for key, templates in self._templates.items():
            for name, watching in sorted(templates.monitors().items()):
                if (key, name) not in self._watched:
                    await stack.enter_async_context(watching(expand_again))
                    self._watched.add((key, name))

    def _members(self, entry: ResourceEntry[Any]) -> _Members:
        if entry.key not in self._templates:
            self._templates[entry.key] = entry.family.name_templates()
        before, members = self.current.members.get(entry.name, (None, {}))
        found = self._templates[entry.key].members(entry)
        new = {name: replace(entry, name=name, settings=settings) for name, settings in found.items()}
        return {**members, **new} if before == entry else new

    def _log(self, refused: Mapping[str, str]) -> None:
        for name, reason in refused.items():
            facts = {"resource": name, "error": reason}
            self._problems.error("resource not served: its name is refused", reason, key=name, extra=facts)


def _reason_against(name: str, owner: ResourceEntry[Any], member: ResourceEntry[Any]) -> str:
    """Why an entry cannot have this name; empty if it can."""
    if owner is not member:
        return "another resource of the file has this name"
    try:
        Resource(name)
    except InvalidValue as error:
        return str(error)
    return ""
