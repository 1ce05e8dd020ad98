"""The node that faults happen on: its directories, its fake hardware, and the resources that its daemon serves.

`mock/steady` is what no fault touches: it must be served throughout. `example.com/checked` is healthy for as long as a
file says so, which is how the truth of the health is measured. The others are what faults are injected into.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.generic.machines import Machine

from plugwright.protocol.paths import KubeletPaths

__all__ = ["CHECKED", "FACTS", "GPU", "NIC", "RESOURCES", "STEADY", "Node"]

STEADY, FACTS, GPU = "mock/steady", "mock/facts", "nvidia.com/gpu"
CHECKED, NIC = "example.com/checked", "example.com/nic"
RESOURCES: Mapping[str, int] = {STEADY: 64, FACTS: 2, GPU: 4, CHECKED: 1, NIC: 1}  # and how many devices each has

_OFTEN: Mapping[str, object] = {"every": 0.4, "timeout": 0.4, "failures": 1, "successes": 1}
_GOOD, _BAD = "ok", "burnt"


@dataclass(frozen=True, slots=True)
class Node:
    """`root` is of the test bed; `kubelet_dir` is the kubelet's, as this process and as the daemon sees it."""

    root: Path
    kubelet_dir: Path
    kubelet_dir_inside: Path

    @property
    def paths(self) -> KubeletPaths:
        return KubeletPaths.under(self.kubelet_dir)

    @property
    def config(self) -> Path:
        return self.root / "etc" / "plugwright.yaml"

    @property
    def control(self) -> Path:
        return self.root / "run" / "control.sock"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def machine(self) -> Machine:
        return Machine(self.root / "host")

    @property
    def operstate(self) -> Path:
        """The driver's file that says whether the network card has a link."""
        return self.machine.root / "sys/class/net/ens1/operstate"

    @property
    def checked_file(self) -> Path:
        return self.machine.root / "run/health"

    def furnish(self) -> None:
        for directory in (self.config.parent, self.control.parent, self.state):
            directory.mkdir(parents=True)
        function = self.machine.pci("0000:01:00.0", "8086:1572", "020000", "i40e")
        card = self.machine.interface(function, "ens1")
        self.machine.link(f"/sys/devices/{card}/device", f"/sys/devices/{function}")
        self.machine.write("/dev/checked")
        self.say_checked(healthy=True)
        self.configure()

    def configure(self, more: Sequence[Mapping[str, object]] = ()) -> None:
        """At once, so that nobody reads half of it. JSON is YAML too. `more` are further resources."""
        new = self.config.with_name("new")
        host = {"root": str(self.machine.root), "cdi": str(self.root / "cdi")}
        new.write_text(json.dumps({"resources": [*self._resources(), *more], "host": host}))
        new.replace(self.config)

    def say_checked(self, *, healthy: bool) -> None:
        self.machine.write("/run/new", _GOOD if healthy else _BAD).replace(self.checked_file)

    def files(self) -> set[str]:
        """Everything that the daemon may leave behind; sockets have new names after each registration.

        The history of devices, which begins with its first event, names of owners and locks are meant to stay.
        """
        found = {path for directory in (self.state, self.control.parent) for path in directory.rglob("*")}
        found = {path for path in found if not path.name.startswith("history.jsonl") and path.suffix != ".lock"}
        found -= {*(self.state / "owners").glob("*")}
        # Names with a dot are the kubelet's, which may have been killed while it wrote its checkpoint.
        sockets = [path for path in self.paths.device_plugins.glob("[!.]*") if path.name != "kubelet.sock"]
        kinds = {f"device-plugins/*{path.suffix}" for path in sockets}
        return {str(path.relative_to(self.root)) for path in found} | kinds

    def _resources(self) -> list[Mapping[str, object]]:
        is_good = {"file": "/run/health", "equals": _GOOD, **_OFTEN}
        return [
            {"name": STEADY, "mock": {"count": RESOURCES[STEADY]}},
            {"name": FACTS, "mock": {"count": RESOURCES[FACTS], "facts": str(self.state / "facts")}},
            {"name": GPU, "nvidia": {"simulate": "t4", "rescan": 1}},
            {"name": CHECKED, "paths": ["/dev/checked"], "health": is_good},
            {"name": NIC, "net": {"name": "ens1"}, "health": {"link": "up", **_OFTEN}},
        ]
