"""What an operator may ask of a device again and again: link, driver, a file, an HTTP address, a command.

Each says what is wrong, nothing if all is well, or None when it cannot be told. When a device counts as broken is
`health`'s business, asking is `checking`'s. Loaded only where something is to be checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.generic import allocation
from plugwright.plugins.generic.hardware import Unit, facts_of, pattern
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host
from plugwright.system import concurrency, processes

__all__ = ["Command", "Driver", "File", "Http", "Link"]


_LONGEST = 200  # of what a command or a file says
_PATHS = ("node", "nodes")
_LARGEST = 4096  # bytes of a file; those of sysfs have no more


@dataclass(frozen=True, slots=True)
class Link:
    """One port up is enough: an adapter with two ports is often wired with one."""

    @property
    def stoppable(self) -> bool:
        return True

    async def fault(self, host: Host, unit: Unit) -> str | None:
        if unit.directory is None or (unit.anchor is not None and not unit.directory.exists()):
            return None  # a pod has it in a network namespace of its own
        states = _links(unit.directory)
        if not states:
            # An interface that went to a pod leaves its place behind, empty.
            return None if unit.directory.joinpath("net").is_dir() else "has no link"
        return "" if any(states.values()) else f"link down: {', '.join(sorted(states))}"


@dataclass(frozen=True, slots=True)
class Driver:
    name: str = "*"

    @property
    def stoppable(self) -> bool:
        return True

    async def fault(self, host: Host, unit: Unit) -> str | None:
        places = [unit.directory, unit.anchor] if unit.directory else []
        bound = next((name for each in places if each and (name := _driver(each))), "")
        if not bound:
            return "no driver is bound"
        return "" if pattern(self.name)(bound) else f"driver {bound} is bound, not {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A path, or one below the device's directory in /sys, where patterns are taken: `hwmon/hwmon*/temp1_input`."""

    path: str
    equals: Sequence[str] = ()
    differs: Sequence[str] = ()
    below: float | None = None
    above: float | None = None

    @property
    def stoppable(self) -> bool:
        return False

    async def fault(self, host: Host, unit: Unit) -> str | None:
        # A serial number is what a device says of itself: it leads to no other directory.
        facts = {key: text if key in _PATHS else text.replace("/", "_") for key, text in facts_of(unit).items()}
        name = allocation.fill(self.path, facts)
        path = _place(host, unit, name)
        if path is None:
            return f"{name}: no such file"
        try:
            # A driver that hangs may keep whoever reads its files waiting.
            text = await concurrency.in_thread(f"read {path}", lambda: _read(path))
        except OSError as error:
            return f"{name}: {error.strerror}"
        wrong = self._wrong(text)
        return f"{name} is {wrong}" if wrong else ""

    def _wrong(self, text: str) -> str:
        if self.equals and text not in self.equals:
            return f"{text[:_LONGEST]!r}, not {' or '.join(map(repr, self.equals))}"
        if text in self.differs:
            return repr(text[:_LONGEST])
        if self.below is None and self.above is None:
            return ""
        try:
            number = float(text)
        except ValueError:
            return f"{text[:_LONGEST]!r}, no number"
        if self.below is not None and not number < self.below:
            return f"{text}, not below {self.below:g}"
        return f"{text}, not above {self.above:g}" if self.above is not None and not number > self.above else ""


@dataclass(frozen=True, slots=True)
class Http:
    """Any answer below 400 is good."""

    address: str
    timeout: float = 5.0

    @property
    def stoppable(self) -> bool:
        return False

    async def fault(self, host: Host, unit: Unit) -> str | None:
        address = allocation.fill(self.address, facts_of(unit))
        return await concurrency.in_thread(f"ask {address}", lambda: self._ask(address))

    def _ask(self, address: str) -> str:
        from urllib.error import HTTPError, URLError  # needs much that nobody else here needs
        from urllib.request import ProxyHandler, build_opener

        try:
            with build_opener(ProxyHandler({})).open(address, timeout=self.timeout):
                return ""
        except HTTPError as error:
            with error:
                return f"{address}: {error.code} {error.reason}"
        except (URLError, OSError, ValueError) as error:
            return f"{address}: {getattr(error, 'reason', error)}"


@dataclass(frozen=True, slots=True)
class Command:
    """Exit status 0 is good; else the last line that it wrote is the reason."""

    words: Sequence[str]

    @property
    def stoppable(self) -> bool:
        return True

    async def fault(self, host: Host, unit: Unit) -> str | None:
        words = [allocation.fill(each, facts_of(unit)) for each in self.words]
        try:
            status, written = await processes.run(words)
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        lines = written.strip().splitlines() or [f"exit status {status}"]
        return f"{words[0]}: {lines[-1][:_LONGEST]}" if status else ""


def _place(host: Host, unit: Unit, name: str) -> Path | None:
    if name.startswith("/"):
        return host.seen(host.resolve(name))
    found = sysfs.matching(unit.directory, name) if unit.directory else []
    return found[0] if found else None


def _read(path: Path) -> str:
    """No more of it than is looked at: an operator's pattern may find a file without an end."""
    with path.open("rb") as file:
        return file.read(_LARGEST).decode(errors="replace").strip()


def _links(directory: Path) -> dict[str, bool]:
    """The ports of an adapter, an interface, or the interfaces of a function, and whether each is up."""
    ports = sysfs.entries(directory / "ports")
    if ports:
        return {f"port {each.name}": sysfs.attribute(each, "state").endswith("ACTIVE") for each in ports}
    interfaces = [directory] if directory.joinpath("operstate").exists() else sysfs.entries(directory / "net")
    return {each.name: _is_up(each) for each in interfaces}


def _is_up(interface: Path) -> bool:
    """`unknown` is what drivers say that cannot tell: then a carrier that is not missing is there."""
    state = sysfs.attribute(interface, "operstate")
    return state == "up" or (state == "unknown" and sysfs.attribute(interface, "carrier") != "0")


def _driver(directory: Path) -> str:
    return sysfs.link_name(directory, "driver") or sysfs.link_name(directory / "device", "driver")
