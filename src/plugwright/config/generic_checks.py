"""The health checks of ordinary devices, made of what the operator's file says."""

import sys
from collections.abc import Callable, Mapping

from plugwright.config.generic import HealthEntry
from plugwright.errors import ConfigError
from plugwright.plugins.generic import allocation
from plugwright.plugins.generic.checks import Command, Driver, File, Http, Link
from plugwright.plugins.generic.health import Check, Hysteresis, Question

__all__ = ["checks"]


def checks(given: HealthEntry | list[HealthEntry]) -> list[Check]:
    return [_check(each) for each in (given if isinstance(given, list) else [given])]


def _check(entry: HealthEntry) -> Check:
    given = [name for name in _QUESTIONS if getattr(entry, name) is not None]
    if len(given) != 1:
        raise ConfigError(f"a health check asks one thing, one of: {', '.join(_QUESTIONS)}")
    stray = [name for name, value in _of_files(entry).items() if value is not None and given != ["file"]]
    if stray:
        raise ConfigError(f"{stray[0]} says what a file must be, and {given[0]} is none")
    return Check(
        question=_QUESTIONS[given[0]](entry),
        every=entry.every,
        timeout=entry.timeout,
        hysteresis=Hysteresis(entry.failures, entry.successes),
    )


def _of_files(entry: HealthEntry) -> dict[str, object]:
    return {"equals": entry.equals, "not": entry.not_, "below": entry.below, "above": entry.above}


def _file(entry: HealthEntry) -> Question:
    path = entry.file or ""
    allocation.check(path)
    if all(value is None for value in _of_files(entry).values()):
        raise ConfigError(f"a health check of {path} says what it must be: equals, not, below or above")
    return File(path=path, equals=_list(entry.equals), differs=_list(entry.not_), below=entry.below, above=entry.above)


def _http(entry: HealthEntry) -> Question:
    address = entry.http or ""
    allocation.check(address)
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"an address to ask looks like http://127.0.0.1:8080/health, not {address!r}")
    if address.startswith("https://"):
        _allow_https()
    return Http(address, entry.timeout)


def _allow_https() -> None:
    """The daemon goes without ssl, for 4 MiB less, until an address needs it."""
    if sys.modules.get("ssl", sys) is None:
        for name in ("ssl", "http.client", "urllib.request"):  # the last two may have been loaded without it
            sys.modules.pop(name, None)


def _command(entry: HealthEntry) -> Question:
    words = entry.command or []
    for each in words:
        allocation.check(each)
    if not words or not words[0].startswith("/"):
        raise ConfigError("a command to check with is a list of words, an absolute path first")
    return Command(tuple(words))


def _list(given: str | list[str] | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else given


_QUESTIONS: Mapping[str, Callable[[HealthEntry], Question]] = {
    "link": lambda entry: Link(),
    "driver": lambda entry: Driver(entry.driver or "*"),
    "file": _file,
    "http": _http,
    "command": _command,
}
