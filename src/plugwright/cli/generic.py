"""Plugins for ordinary devices, made of what the operator's file says.

What to look for is read by `generic_selectors`, what to check by `generic_checks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.cli import generic_selectors
from plugwright.cli.config_generic import GenericKeys, HostEntry
from plugwright.errors import ConfigError, InvalidValue
from plugwright.plugins.generic import danger
from plugwright.plugins.generic.answers import Handing
from plugwright.plugins.generic.checking import Check
from plugwright.plugins.generic.globbing import has_wildcard
from plugwright.plugins.generic.ids import Naming
from plugwright.plugins.generic.plugin import Catalog, Generic, Options, Surroundings
from plugwright.sdk.ears import Ears
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.sysfs import Host

__all__ = ["Shared", "plugin", "wrong"]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all resources of a file have in common; `above` are those further up that keep their devices."""

    host: HostEntry
    ears: Ears
    above: Sequence[GenericKeys] = ()


def plugin(resource: str, entry: GenericKeys, shared: Shared) -> Plugin:
    if not entry.dangerous:
        _refuse_danger(entry)
    options = Options(
        selector=generic_selectors.selector(entry),
        count=entry.count or 1,
        naming=Naming(entry.ids),
        handing=_handing(entry),
        checks=_checks(entry),
        taken=[generic_selectors.selector(each) for each in shared.above],
        topology=entry.topology,
        dangerous=entry.dangerous,
        catalog=_catalog(resource, shared.host) if entry.cdi else None,
        info_directory=Path(shared.host.device_info) if entry.pci is not None else None,
    )
    return Generic(resource, options, Surroundings(host=Host(Path(shared.host.root)), ears=shared.ears))


def wrong(entry: GenericKeys) -> tuple[str, str] | None:
    """The first key that says how devices are handed out and cannot be followed, and why."""
    makers: dict[str, Callable[[], object]] = {
        "permissions": lambda: Handing(permissions=entry.permissions),
        "env": lambda: Handing(env=entry.env),
        "annotations": lambda: Handing(annotations=entry.annotations),
        "remap": lambda: Handing(remap=entry.remap),
        "health": lambda: _checks(entry),
        "info": lambda: _check_info(entry),
    }
    for key, make in makers.items():
        try:
            make()
        except (ConfigError, InvalidValue) as error:
            return key, str(error)
    return None


def _handing(entry: GenericKeys) -> Handing:
    return Handing(
        permissions=entry.permissions,
        env=entry.env,
        annotations=entry.annotations,
        remap=entry.remap,
        pci=entry.pci is not None,
        info=entry.info,
    )


def _checks(entry: GenericKeys) -> Sequence[Check]:
    if not entry.health:
        return ()
    from plugwright.cli import generic_checks  # for those who use it

    return generic_checks.checks(entry.health)


def _check_info(entry: GenericKeys) -> None:
    if entry.info and entry.pci is None:
        raise ConfigError("only containers with pci devices are told this")


def _catalog(resource: str, host: HostEntry) -> Catalog:
    from plugwright.plugins.generic.catalog import CdiCatalog  # for those who use it, as every kind is
    from plugwright.sdk import cdi

    return CdiCatalog(cdi.SpecDirectory(Path(host.cdi)), resource)


def _refuse_danger(entry: GenericKeys) -> None:
    """What a file names outright is refused when it is read; what a pattern finds, when it is found."""
    patterns = [*(entry.paths or []), *(each for group in entry.groups or [] for each in group.paths)]
    for each in patterns:
        path = each if isinstance(each, str) else each.path
        why = "" if has_wildcard(path) else danger.by_name(path.rstrip("/") or "/")
        if why:
            raise ConfigError(f"{why}: needs 'dangerous: true'")
