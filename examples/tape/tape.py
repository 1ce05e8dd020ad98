"""A whole device plugin: two tape drives, each near a NUMA node of its own."""

from plugwright import Allocation, Device, Plugin, run


class Tape(Plugin):
    """Tape drives, one per container."""

    resource = "example.com/tape"

    async def discover(self):  # each yield is the whole truth, replacing the last
        yield [Device("st0", numa=[0]), Device("st1", numa=[1])]

    async def allocate(self, devices):
        return Allocation(nodes=[f"/dev/{d.id}" for d in devices])


if __name__ == "__main__":
    run(Tape())
