"""Which interfaces carry the node's default route: whoever takes one away takes the node away."""

from pathlib import Path

from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host

__all__ = ["carriers"]


_REJECTED = 0x200  # RTF_REJECT: every node without IPv6 has such a route


def carriers(host: Host) -> set[str]:
    """Those that the routes name, and what these stand on: the cards of a bond, of a bridge, of a VLAN."""
    found, new = set[str](), _named(host)
    while new:
        found |= new
        lower = {each.name.removeprefix("lower_") for name in new for each in _lower(host, name)}
        new = lower - found
    return found


def _named(host: Host) -> set[str]:
    """By the node's own tables where we see its processes, else by those of our own network."""
    for place in ("1/net", "net"):
        old, new = _lines(host, f"{place}/route")[1:], _lines(host, f"{place}/ipv6_route")
        if old or new:
            by_old = {line[0] for line in old if len(line) > 7 and line[1] == line[7] == "00000000"}
            return by_old | {line[9] for line in new if len(line) > 9 and _is_default(line)}
    return set()


def _lower(host: Host, name: str) -> list[Path]:
    return sysfs.matching(host.sys / "class" / "net" / name, "lower_*")


def _lines(host: Host, name: str) -> list[list[str]]:
    return [line.split() for line in sysfs.attribute(host.proc, name).splitlines()]


def _is_default(line: list[str]) -> bool:
    """Of IPv6: to everywhere, by a route that leads somewhere."""
    return not line[0].strip("0") and line[1] == "00" and not int(line[8], 16) & _REJECTED
