"""A machine that reboots: what is gone, what stays, and what a container would miss."""

import re
from pathlib import Path
from typing import Any

from plugwright import Allocation, Device, Mount, Plugin
from plugwright.testing import Machine, pod_requesting, running

TAPE = "example.com/tape"
PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


class Shelf(Plugin):
    """A drive with a node, a directory in /run and one in /var."""

    resource = TAPE

    async def discover(self) -> list[Device]:
        return [Device("st0")]

    async def allocate(self, devices: object) -> Allocation:
        return Allocation(nodes=["/dev/st0"], mounts=[Mount("/run/tape"), Mount("/var/lib/tape")])


def populate(machine: Machine) -> None:
    for number, serial in enumerate(machine.enumerated(["A17", "B02", "C33"])):
        machine.path(f"/dev/st{number}").write_text(serial)


def test_a_reboot_empties_run_dev_and_tmp_and_counts_devices_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path, populate)
    first = machine.boot_id, machine.path("/dev/st0").read_text()
    for path in ("/run/x", "/tmp/x", "/dev/x", "/var/x", "/etc/x"):
        machine.path(path).write_text("")
    machine.reboot()
    assert not any(machine.path(path).exists() for path in ("/run/x", "/tmp/x", "/dev/x", "/var/run/x"))
    assert all(machine.path(path).exists() for path in ("/var/x", "/etc/x"))
    assert machine.boot_id != first[0]
    assert machine.path("/dev/st0").read_text() != first[1]
    assert machine.path(machine.root / "dev") == machine.root / "dev"


async def test_what_a_container_was_given_is_missing_until_it_is_made_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", populate)
    for path in ("/run/tape", "/var/lib/tape"):
        machine.path(path).mkdir(parents=True)
    async with running(Shelf(), tmp_path) as kubelet:
        given = (await kubelet.admit(pod_requesting({TAPE: 1}))).container("main")
    assert machine.missing(given) == []
    machine.reboot()
    assert machine.missing(given) == ["/run/tape"]


async def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    [block] = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Machine" in code]
    names: dict[str, Any] = {}
    exec(block, names)
    await names["test_a_pod_has_its_drive_after_a_reboot"](tmp_path)
