"""Checks of an author's plugins before and while they are served: one line for each mistake.

A certain mistake is rejected with `InvalidValue`; a possible mistake is a warning in the log.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.model import PreferenceRequest, Resource
from plugwright.sdk.plugin import Plugin

__all__ = ["ListPacer", "check_plugins", "preference_problem", "warn_of_misspelt_methods"]

logger = logging.getLogger(__name__)

_METHODS = ("discover", "allocate", "prefer", "pre_start", "check_parameters", "release", "restore", "command")
_BURST = 1000  # lists in a row; no hardware changes that often
_LONGEST_LEASE = 86400  # seconds; health confirmed less often than this is not observed
_PACE = 0.1  # seconds between two lists of a discover() that yielded more, and the sustained rate without that limit


def check_plugins(plugins: Iterable[object]) -> list[Plugin]:
    """The plugins; InvalidValue unless each is a valid plugin with its own resource name."""
    checked: list[Plugin] = []
    for plugin in plugins:
        instance = _instance(plugin)
        if instance.resource in {other.resource for other in checked}:
            raise InvalidValue(f"two plugins serve {instance.resource}: each must have a resource of its own")
        checked.append(instance)
    return checked


def _instance(plugin: object) -> Plugin:
    if isinstance(plugin, type) and issubclass(plugin, Plugin):
        raise InvalidValue(f"plugin must be an instance, got the class {plugin.__name__}: write {plugin.__name__}()")
    if isinstance(plugin, list | tuple):
        raise InvalidValue(f"plugin must be a Plugin, got a {type(plugin).__name__}: write run(*plugins)")
    if not isinstance(plugin, Plugin):
        raise InvalidValue(f"plugin must be an instance of a subclass of plugwright.Plugin, got {plugin!r}")
    resource = getattr(plugin, "resource", None)
    if not resource:
        example = f'resource = "example.com/{type(plugin).__name__.lower()}"'
        raise InvalidValue(f"{_named(plugin)} must have a resource name, such as {example}, got {resource!r}")
    try:
        Resource(resource)
    except InvalidValue as error:
        raise InvalidValue(f"{_named(plugin)}: {error}") from None
    if not _overrides(plugin, "discover"):
        hint = "".join(
            f": rename {name}() to discover()?" for name, method in _misspelt(plugin) if method == "discover"
        )
        raise InvalidValue(
            f"{_named(plugin)} must have a method discover() that yields lists of devices, got none{hint}"
        )
    lease: object = plugin.health_lease
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not 0 <= lease <= _LONGEST_LEASE:
        raise InvalidValue(f"{_named(plugin)}: health_lease must be seconds from 0 to {_LONGEST_LEASE}, got {lease!r}")
    return plugin


def warn_of_misspelt_methods(plugins: Iterable[Plugin]) -> None:
    """Warns about misspelt method names: names close to a method not overridden."""
    for plugin in plugins:
        for name, method in _misspelt(plugin):
            facts = {
                "resource": plugin.resource,
                "method": f"{_named(plugin)}.{name}",
                "hint": f"did you mean {method}?",
            }
            logger.warning("method is never called", extra=facts)


def _misspelt(plugin: Plugin) -> Iterator[tuple[str, str]]:
    own = [name for name in dir(type(plugin)) if not name.startswith("_") and not hasattr(Plugin, name)]
    if not own:
        return
    import difflib  # only for plugins with additional methods

    for name in own:
        if not callable(getattr(type(plugin), name)):
            continue
        for method in difflib.get_close_matches(name, _METHODS, n=1, cutoff=0.8):
            if not _overrides(plugin, method):
                yield name, method


def _overrides(plugin: Plugin, method: str) -> bool:
    return getattr(type(plugin), method) is not getattr(Plugin, method) or method in getattr(plugin, "__dict__", {})


def _named(plugin: Plugin) -> str:
    """The class, and the line of its definition, if known."""
    kind = type(plugin)
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return kind.__name__
    return f"{kind.__name__} ({Path(file or '').name}:{line})"


def preference_problem(resource: str, preferred: Sequence[str], request: PreferenceRequest) -> str:
    """The mistake in the ids returned by prefer(), which is corrected; empty if there is none."""
    unknown = [device_id for device_id in preferred if device_id not in request.available]
    if unknown:
        return (
            f"prefer() of {resource} must choose among the available devices, got {', '.join(map(repr, unknown[:8]))}"
        )
    if len(preferred) > request.size:
        return f"prefer() of {resource} must return {request.size} devices, got {len(preferred)}"
    return ""


class ListPacer:
    """Slows down a discover() without waits, which would use a whole processor."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._left, self._counted = float(_BURST), time.monotonic()
        self._spins = False

    async def pause(self) -> None:
        """Call this between two lists: lets the event loop run, and waits after far too many lists."""
        if self._spins:
            await asyncio.sleep(_PACE)
            return
        await asyncio.sleep(0)  # a discover() that never awaits must not monopolise the loop
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._counted) / _PACE) - 1
        self._counted = now
        if self._left < 0:
            self._spins = True
            hint = f"wait for a change before the next yield; from now on there is one list every {_PACE:g} s"
            logger.warning("discover() yields lists without waiting", extra={"resource": self._resource, "hint": hint})
