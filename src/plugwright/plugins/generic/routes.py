"""Which interfaces carry the node's default route: whoever takes one away takes the node away."""

from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host

__all__ = ["carriers"]


def carriers(host: Host) -> set[str]:
    """By the node's own table where we see its processes, else by that of our own network."""
    for place in ("1/net/route", "net/route"):
        lines = [line.split() for line in sysfs.attribute(host.proc, place).splitlines()[1:]]
        if lines:
            return {line[0] for line in lines if len(line) > 7 and line[1] == line[7] == "00000000"}
    return set()
