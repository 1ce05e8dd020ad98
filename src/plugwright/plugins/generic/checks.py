"""The probes of health checks: a link, a driver, a file, an HTTP address, a command.

Files are read in a thread: a hanging driver blocks readers of its files, for a minute if the firmware of a network
adapter has failed. Loaded only for resources with health checks. A new kind of check needs a key in
`health.HealthCheck`, a probe, and a line in `_PROBES`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from plugwright.errors import ConfigError, InvalidSetting, InvalidValue
from plugwright.plugins.generic import allocation
from plugwright.plugins.generic.hardware import Unit, as_list, facts_of, pattern
from plugwright.plugins.generic.health import HealthCheck, Probe
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host
from plugwright.system import concurrency, cpython, processes
from plugwright.system.blocking import BlockingCalls

__all__ = ["CommandProbe", "probe_of", "probes_of"]

_LONGEST = 200  # characters of a command's output or a file's content in a reason
_LARGEST = 4096  # bytes of a file; sysfs files have no more
_PATH_FACTS = ("node", "nodes")


def probes_of(health: HealthCheck | list[HealthCheck]) -> list[tuple[HealthCheck, Probe]]:
    try:
        return [(check, probe_of(check)) for check in as_list(health)]
    except (ConfigError, InvalidValue) as error:
        raise InvalidSetting(str(error), "health") from error


def probe_of(check: HealthCheck) -> Probe:
    kinds = [kind for kind in _PROBES if getattr(check, kind) is not None]
    if len(kinds) != 1:
        raise ConfigError(f"a health check must have one of: {', '.join(_PROBES)}")
    conditions = [name for name, value in _conditions(check).items() if value is not None]
    if conditions and kinds != ["file"]:
        raise ConfigError(f"{conditions[0]} only applies to file checks, not to {kinds[0]}")
    return _PROBES[kinds[0]](check)


class LinkProbe(msgspec.Struct, frozen=True):
    """One active port is enough: an adapter with two ports often has only one cable."""

    check: HealthCheck
    kind: str = "link"
    stoppable: bool = False

    async def fault(self, host: Host, unit: Unit) -> str | None:
        return await concurrency.in_thread(f"check link of {unit.id}", lambda: self._look(unit))

    def watched(self, host: Host, unit: Unit) -> Path | None:
        return unit.directory

    def _look(self, unit: Unit) -> str | None:
        if unit.directory is None or (unit.anchor is not None and not unit.directory.exists()):
            return None  # a pod has it in its own network namespace
        states = _link_states(unit.directory)
        if not states:
            # An interface moved to a pod leaves an empty directory behind.
            return None if unit.directory.joinpath("net").is_dir() else "has no link"
        return "" if any(states.values()) else f"link down: {', '.join(sorted(states))}"


class DriverProbe(msgspec.Struct, frozen=True):
    check: HealthCheck
    kind: str = "driver"
    stoppable: bool = False

    async def fault(self, host: Host, unit: Unit) -> str | None:
        return await concurrency.in_thread(f"check driver of {unit.id}", lambda: self._look(unit))

    def watched(self, host: Host, unit: Unit) -> Path | None:
        return unit.directory

    def _look(self, unit: Unit) -> str:
        wanted = self.check.driver or "*"
        directories = [unit.directory, unit.anchor] if unit.directory else []
        bound = next((name for directory in directories if directory and (name := _driver(directory))), "")
        if not bound:
            return "no driver is bound"
        return "" if pattern(wanted)(bound) else f"driver {bound} is bound, not {wanted}"


class FileProbe(msgspec.Struct, frozen=True):
    """Reads a path, or one relative to the device's directory in /sys, with wildcards: `hwmon/hwmon*/temp1_input`."""

    check: HealthCheck
    kind: str = "file"
    stoppable: bool = False

    def __post_init__(self) -> None:
        path = self.check.file or ""
        allocation.check_template(path)
        if all(value is None for value in _conditions(self.check).values()):
            raise ConfigError(f"a health check of {path} must have one of: equals, not, below, above")

    async def fault(self, host: Host, unit: Unit) -> str | None:
        return await concurrency.in_thread(f"check file of {unit.id}", lambda: self._look(host, unit))

    def watched(self, host: Host, unit: Unit) -> Path | None:
        return _find_file(host, unit, self._name(unit))

    def _name(self, unit: Unit) -> str:
        # The device reports its serial number itself: it must not lead to another directory.
        facts = {key: text if key in _PATH_FACTS else text.replace("/", "_") for key, text in facts_of(unit).items()}
        return allocation.fill(self.check.file or "", facts)

    def _look(self, host: Host, unit: Unit) -> str:
        name = self._name(unit)
        path = _find_file(host, unit, name)
        if path is None:
            return f"{name}: no such file"
        try:
            text = _read(path)
        except OSError as error:
            return f"{name}: {error.strerror}"
        contradiction = self._contradiction(text)
        return f"{name} is {contradiction}" if contradiction else ""

    def _contradiction(self, text: str) -> str:
        equals, below, above = as_list(self.check.equals), self.check.below, self.check.above
        if equals and text not in equals:
            return f"{text[:_LONGEST]!r}, not {' or '.join(map(repr, equals))}"
        if text in as_list(self.check.not_):
            return repr(text[:_LONGEST])
        if below is None and above is None:
            return ""
        try:
            number = float(text)
        except ValueError:
            return f"{text[:_LONGEST]!r}, not a number"
        if below is not None and not number < below:
            return f"{text}, not below {below:g}"
        return f"{text}, not above {above:g}" if above is not None and not number > above else ""


class HttpProbe(msgspec.Struct, frozen=True):
    """Any status below 400 means healthy."""

    check: HealthCheck
    kind: str = "http"
    stoppable: bool = False

    def __post_init__(self) -> None:
        address = self.check.http or ""
        allocation.check_template(address)
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"an http address must look like http://127.0.0.1:8080/health, got {address!r}")
        if address.startswith("https://"):
            cpython.allow_ssl()

    async def fault(self, host: Host, unit: Unit) -> str | None:
        address = allocation.fill(self.check.http or "", facts_of(unit))
        return await concurrency.in_thread(f"GET {address}", lambda: self._get(address))

    def _get(self, address: str) -> str:
        from http.client import HTTPException  # nothing else in the daemon needs it
        from urllib.error import HTTPError, URLError
        from urllib.request import ProxyHandler, build_opener

        try:
            with build_opener(ProxyHandler({})).open(address, timeout=self.check.timeout):
                return ""
        except HTTPError as error:
            with error:
                return f"{address}: {error.code} {error.reason}"
        except (URLError, OSError, ValueError) as error:
            return f"{address}: {getattr(error, 'reason', error)}"
        except HTTPException as error:  # a response that is not HTTP
            return f"{address}: {type(error).__name__}: {error}"


class CommandProbe:
    """Exit status 0 means healthy; otherwise the last line of the output is the reason."""

    kind = "command"
    stoppable = True

    def __init__(self, check: HealthCheck, look: Callable[[str], object] = os.path.exists) -> None:
        self.check, self.look = check, look
        self._looks = BlockingCalls("look at the command", check.timeout, most_hung=1)
        words = check.command or []
        allocation.check_template(*words)
        if not words or not words[0].startswith("/"):
            raise ConfigError("a command must be a list of words, an absolute path first")

    async def fault(self, host: Host, unit: Unit) -> str | None:
        words = [allocation.fill(word, facts_of(unit)) for word in self.check.command or []]
        try:
            # Starting it would block the event loop if its file system does not respond.
            await self._looks.run(lambda: self.look(words[0]))
            status, output = await processes.run_alone(words)
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        lines = output.strip().splitlines() or [f"exit status {status}"]
        return f"{words[0]}: {lines[-1][:_LONGEST]}" if status else ""


_PROBES: Mapping[str, Callable[[HealthCheck], Probe]] = {
    "link": LinkProbe,
    "driver": DriverProbe,
    "file": FileProbe,
    "http": HttpProbe,
    "command": CommandProbe,
}


def _conditions(check: HealthCheck) -> dict[str, object]:
    return {"equals": check.equals, "not": check.not_, "below": check.below, "above": check.above}


def _find_file(host: Host, unit: Unit, name: str) -> Path | None:
    if name.startswith("/"):
        return host.seen(host.resolve(name))
    matches = sysfs.matching(unit.directory, name) if unit.directory else []
    return matches[0] if matches else None


def _read(path: Path) -> str:
    """The beginning of a file: an operator's pattern can match an endless one."""
    with path.open("rb") as file:
        return file.read(_LARGEST).decode(errors="replace").strip()


def _link_states(directory: Path) -> dict[str, bool]:
    """The ports of an adapter, an interface, or the interfaces of a function, and whether each is active."""
    ports = sysfs.entries(directory / "ports")
    if ports:
        return {f"port {port.name}": sysfs.attribute(port, "state").endswith("ACTIVE") for port in ports}
    interfaces = [directory] if directory.joinpath("operstate").exists() else sysfs.entries(directory / "net")
    return {interface.name: _is_up(interface) for interface in interfaces}


def _is_up(interface: Path) -> bool:
    """Whether an interface is active. If a driver reports `unknown`, the carrier decides, unless unknown too."""
    state = sysfs.attribute(interface, "operstate")
    return state == "up" or (state == "unknown" and sysfs.attribute(interface, "carrier") != "0")


def _driver(directory: Path) -> str:
    return sysfs.link_name(directory, "driver") or sysfs.link_name(directory / "device", "driver")
