"""A machine to reboot: a plugin's directories, and the effect of a reboot on them.

A plugin whose roots are arguments runs on it without hardware and without root. `/run`, `/dev` and `/tmp` are empty
after a boot, as on a real machine, devices can be enumerated in another order, and the kubelet starts containers from
its stored answers. `missing` lists what a container runtime would then not find.
"""

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from plugwright.errors import InvalidValue
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.sdk.cdi import resolution
from plugwright.sdk.cdi.spec import ContainerEdits

__all__ = ["Machine"]

T = TypeVar("T")

_EMPTY_AFTER_BOOT = ("dev", "run", "tmp")
_LASTING = ("etc", "proc", "sys", "var")


class Machine:
    """The machine below `root`, booted once; `populate` is called at every boot, to make the nodes of devices.

    `/var/run` is a link to `/run`, `/dev/null` exists, and each boot changes `/proc/sys/kernel/random/boot_id`.
    """

    def __init__(self, root: Path, populate: Callable[["Machine"], None] = lambda _: None) -> None:
        self.root, self.boots = Path(root).absolute(), 0
        self._populate = populate
        for name in _LASTING:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        if not self.path("/var/run").is_symlink():
            self.path("/var/run").symlink_to("../run")
        self.reboot()

    def path(self, host_path: str | Path) -> Path:
        """The location of a machine's path: `/dev/st0` is `root/dev/st0`; a path below `root` stays unchanged."""
        path = Path(host_path)
        return path if path.is_relative_to(self.root) else self.root / path.relative_to("/")

    @property
    def boot_id(self) -> str:
        return self.path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def reboot(self) -> None:
        """Reboots. First end whatever ends with the machine: the plugin, and the kubelet of `running`."""
        self.boots += 1
        for name in _EMPTY_AFTER_BOOT:
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir()
        self.path("/dev/null").touch()
        boot_id = self.path("/proc/sys/kernel/random/boot_id")
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self._populate(self)

    def enumerated(self, devices: Sequence[T]) -> list[T]:
        """The devices in the order of their discovery at this boot, different from the previous boot's."""
        start = (self.boots - 1) % len(devices) if devices else 0
        return [*devices[start:], *devices[:start]]

    def missing(self, given: RunContainerOptions) -> list[str]:
        """What a runtime would not find for a container with this allocation: paths of the machine and CDI names."""
        missing = [path for path in self._paths(given) if not self.path(path).exists()]
        for name in given.cdi:
            try:
                edits = resolution.edits_for([name], [self.path("/etc/cdi"), self.path("/run/cdi")])
            except InvalidValue:
                missing.append(name)
            else:
                missing += [path for edit in edits for path in _edited(edit) if not self.path(path).exists()]
        return sorted(set(missing))

    @staticmethod
    def _paths(given: RunContainerOptions) -> list[str]:
        return [*(mount.host_path for mount in given.mounts), *(node.host_path for node in given.nodes)]


def _edited(edits: ContainerEdits) -> list[str]:
    nodes = [node.host_path or node.path for node in edits.device_nodes]
    return [*nodes, *(mount.host_path for mount in edits.mounts)]
