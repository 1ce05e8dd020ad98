"""The node's directories in the daemon's pod, declared as data by each device family.

A family lists `HostMount`s. `plugwright manifest` evaluates them here; the Helm chart evaluates the same ones from its
families.json, written by `make chart`. A test renders both for every family and compares them.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from plugwright.grammars import directory_before_wildcard

__all__ = ["HOST_ROOT", "FromSettings", "HostDirectory", "HostMount", "When", "directories"]


class HostDirectory(msgspec.Struct, frozen=True):
    """A directory of the node, mounted into the daemon's pod at the same path unless `mount_path` is set.

    `written`: the daemon writes files there, and the directory is created if it is missing. `mounts`: file systems
    mounted below it later on the node must be visible too.
    """

    path: str
    mount_path: str = ""
    written: bool = False
    mounts: bool = False


class FromSettings(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The value of the first setting with a value, or `default`.

    A setting is a dotted path below the resource in the operator's file, such as `nvidia.cdi.dir`; `host.root` and its
    siblings are the file's own. Lists have one value for each item.
    """

    settings: tuple[str, ...]
    default: str = ""
    part: Literal["whole", "parent", "before-wildcard"] = "whole"
    suffix: str = ""


class When(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition: a value is in `one_of`, if given, and none is in `none_of`.

    A setting without a value counts as the empty string.
    """

    value: FromSettings
    one_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()


class HostMount(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Directories to mount if every condition of `when` holds.

    `at`: where the daemon sees the directory, if not at its own path. `below_root`: it sees it below `host.root`.
    `unless_below`: skipped below these directories. `unless_runtime_class`: the chart omits it if the daemon runs with
    a runtime class, whose runtime then provides it. `written` and `mounts` are as in `HostDirectory`.
    """

    path: str | FromSettings
    at: FromSettings | None = None
    when: tuple[When, ...] = ()
    below_root: bool = False
    unless_below: tuple[str, ...] = ()
    unless_runtime_class: bool = False
    written: bool = False
    mounts: bool = False


HOST_ROOT = FromSettings(("host.root",), "/")


def directories(mounts: Iterable[HostMount], settings: Mapping[str, object]) -> list[HostDirectory]:
    """The directories that a resource needs; `settings` are its keys in the file, and the file's own under `host`."""
    (root,) = _values(HOST_ROOT, settings)
    found: dict[HostDirectory, None] = {}
    for mount in mounts:
        if all(_holds(condition, settings) for condition in mount.when):
            found |= dict.fromkeys(_mounted(mount, root.rstrip("/"), settings))
    return list(found)


def _mounted(mount: HostMount, root: str, settings: Mapping[str, object]) -> Iterator[HostDirectory]:
    for path in [mount.path] if isinstance(mount.path, str) else _values(mount.path, settings):
        if not any(path == parent or path.startswith(f"{parent}/") for parent in mount.unless_below):
            at = f"{root}{path}" if mount.below_root and root else ""
            if mount.at is not None:
                (at,) = _values(mount.at, settings)
            yield HostDirectory(path, at if at != path else "", mount.written, mount.mounts)


def _holds(condition: When, settings: Mapping[str, object]) -> bool:
    values = {*_values(condition.value, settings)} or {""}
    return (not condition.one_of or bool(values & {*condition.one_of})) and not values & {*condition.none_of}


def _values(source: FromSettings, settings: Mapping[str, object]) -> list[str]:
    found = next((values for path in source.settings if (values := _lookup(settings, path.split(".")))), [])
    if not found and source.default:
        found = [source.default]
    return [f"{_part(source.part, value)}{source.suffix}" for value in found]


def _lookup(value: object, keys: Sequence[str]) -> list[str]:
    """The values that are set: lists are flattened, and a string stands for its struct."""
    if isinstance(value, list):
        return [found for item in value for found in _lookup(item, keys)]
    if isinstance(value, Mapping):
        return _lookup(value.get(keys[0]), keys[1:]) if keys else []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [str(value)] if value not in (None, "") else []


def _part(part: str, value: str) -> str:
    if part == "before-wildcard":
        return directory_before_wildcard(_clean(value))
    if part == "parent":
        return posixpath.dirname(_clean(value))
    return _clean(value)


def _clean(path: str) -> str:
    """As Go's path.Clean, which the chart uses; Python keeps two slashes at the start."""
    clean = posixpath.normpath(path)
    return f"/{clean.lstrip('/')}" if clean.startswith("/") else clean
