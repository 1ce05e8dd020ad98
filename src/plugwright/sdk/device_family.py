"""Device families: the kinds of devices in the operator's file, and the interface of such a kind.

A family is one key of a resource in that file:

    resources:
      - name: example.com/tpu
        tpu: {model: v5e}           # the key of the family, and its settings

It provides the type of its settings and makes plugins from them; `config` reads the file and finds the line of an
error. A package adds a family by an entry point in the group `plugwright.families` whose name is the key:

    [project.entry-points."plugwright.families"]
    tpu = "acme_tpu:family"
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from plugwright.attributes import whole_quantity
from plugwright.errors import ConfigError, InvalidSetting, InvalidValue
from plugwright.sdk.host_mounts import HostDirectory, HostMount, directories
from plugwright.sdk.hotplug import HotplugSource
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import Expectation, ServeSettings

__all__ = [
    "ENTRY_POINTS",
    "AbsolutePath",
    "DeviceFamily",
    "FamilyContext",
    "FamilySettings",
    "HostDirectory",
    "HostSettings",
    "InvalidSetting",
    "NameTemplates",
    "ResourceEntry",
    "Texts",
    "byte_size",
]

ENTRY_POINTS = "plugwright.families"

Texts = str | list[str]  # one text or several, as operators write them
AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]
S = TypeVar("S")


class FamilySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of settings: an unknown key and a value of the wrong type are errors with their line."""


class HostSettings(FamilySettings, frozen=True, rename="camel"):
    """The paths of the host's files as the daemon sees them; paths in allocations are the host's own."""

    root: AbsolutePath = "/"
    device_info: AbsolutePath = "/var/run/k8s.cni.cncf.io/devinfo/dp"
    cdi: AbsolutePath = "/var/run/cdi"


class DeviceFamily(Generic[S]):
    """One kind of device. A package registers an instance of a subclass; `settings` and `plugin` are all it needs."""

    settings: Any
    """The type of the value of the family's key: a struct of `FamilySettings`, or a list or union of such structs."""

    options: type[msgspec.Struct] | None = None
    """The keys that a resource can have besides the family's own; all have defaults."""

    mounts: Sequence[HostMount] = ()
    """The directories of the node that a daemon in a pod needs: the chart and `plugwright manifest` mount them."""

    extras: Sequence[str] = ()
    """The extras of plugwright that its plugins need: deployments then use the image with extras."""

    placeholders: ClassVar[Mapping[str, str]] = {}
    """The placeholders allowed in braces in a resource's name, each with an example, such as `{"model": "a100"}`."""

    def plugin(self, entry: "ResourceEntry[S]", context: "FamilyContext") -> Plugin:
        """The plugin of this resource. Checking a file calls this too, so the plugin opens nothing yet."""
        raise NotImplementedError

    def check(self, entry: "ResourceEntry[S]", earlier: "Sequence[ResourceEntry[S]]") -> None:
        """Raises `ConfigError` if a resource contradicts `earlier` ones of this family in the same file."""

    def join(self, plugins: Sequence[Plugin], serving: Collection[Plugin]) -> None:
        """Lets plugins of this family share what they can, such as one monitor of the hardware.

        `plugins` are all plugins of the file, of any family; `serving` are those already served.
        """

    def context(self, entries: "Iterable[ResourceEntry[Any]]") -> object:
        """The parts of other entries on which plugins of this family depend: a change makes all of them again."""
        return None

    def redirected(self, entry: "ResourceEntry[S]", directory: Path) -> "ResourceEntry[S] | None":
        """The resource with all files of its plugin moved below `directory`, at their usual paths in there.

        For `plugwright run --once`, which must not change the node. If None, allocate() is not called then.
        """
        return None

    def host_directories(self, entry: "ResourceEntry[S]", host: HostSettings) -> "Sequence[HostDirectory]":
        """The directories of the node for this resource in a pod: `mounts`, evaluated for its settings."""
        options = msgspec.to_builtins(entry.options) if entry.options is not None else {}
        own = {entry.key: msgspec.to_builtins(entry.settings), "host": msgspec.to_builtins(host)}
        return directories(self.mounts, {**options, **own})

    def name_templates(self) -> "NameTemplates[S]":
        """For families with `placeholders`; called once in a daemon."""
        raise NotImplementedError


class ResourceEntry(msgspec.Struct, Generic[S], frozen=True):
    """One resource of the operator's file. `options` has the family's type of options, if there is one."""

    name: str
    key: str
    family: DeviceFamily[S]
    settings: S
    options: Any = None
    serve: ServeSettings = msgspec.field(default_factory=ServeSettings)
    expect: Expectation | None = None

    @property
    def is_template(self) -> bool:
        """Whether the name is a template of several names, which depend on the machine."""
        return any(f"{{{placeholder}}}" in self.name for placeholder in self.family.placeholders)


class FamilyContext(msgspec.Struct, frozen=True):
    """Context shared by all resources of a file; `earlier` are the resources further up in it, of any family."""

    host: HostSettings = msgspec.field(default_factory=HostSettings)
    hotplug: HotplugSource = msgspec.field(default_factory=HotplugSource)
    earlier: Sequence[ResourceEntry[Any]] = ()


class NameTemplates(Protocol[S]):
    """The resources behind templates such as `nvidia.com/mig-{profile}`, on the machine of one daemon."""

    def members(self, entry: ResourceEntry[S]) -> Mapping[str, S]:
        """The names currently known for a template, each with its settings."""
        ...

    def join(self, plugins: Sequence[Plugin]) -> None:
        """Lets plugins share the monitors for the names."""
        ...

    def monitors(self) -> Mapping[str, Callable[[Callable[[], None]], AbstractAsyncContextManager[object]]]:
        """Contexts by name; each calls its callback when `members` could have changed."""
        ...


def byte_size(text: int | str) -> int:
    """The bytes in `40Gi`, `16G` or a plain number."""
    try:
        return whole_quantity("a size", text)
    except InvalidValue as error:
        raise ConfigError(str(error)) from None
