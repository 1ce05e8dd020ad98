"""plugwright on the node: `plugwright run` and plugins of one's own, as processes beside the real kubelet."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.kubernetes.enclosure import Process
from tests.kubernetes.host import Host
from tests.kubernetes.waiting import until

__all__ = ["Daemon", "Plugins"]

_SMALL_PLUGIN = Path(__file__).parents[1] / "conformance" / "plugin.py"
_SMALL_DRIVER = Path(__file__).parents[1] / "conformance" / "driver.py"
_SCRIPTS = Path(__file__).parent / "scripts"
Resources = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Daemon:
    """A `plugwright run`; it keeps its files in `place`."""

    cluster: Host
    process: Process
    place: Path

    def configure(self, resources: Resources) -> None:
        configure(self.place, resources)

    def ask(self, *arguments: str) -> str:
        """What a command prints that speaks with this daemon."""
        control = f"--control-socket={self.place / 'control.sock'}"
        done = self.cluster.run(sys.executable, "-m", "plugwright", *arguments, control)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, resource: str) -> dict[str, Any]:
        """The resource in the NodeReport."""
        report = json.loads(self.ask("status", "--output=json"))
        return next(each for each in report["resources"] if each["name"] == resource)

    def logged(self, message: str, **facts: object) -> list[dict[str, Any]]:
        """The log's records with this message and these facts, oldest first."""
        records = [json.loads(line) for line in self.process.lines() if line.startswith("{")]
        wanted = {"message": message, **facts}
        return [record for record in records if wanted.items() <= record.items()]

    def registrations(self, resource: str) -> list[float]:
        """When the kubelet accepted it, in seconds since 1970."""
        return [
            datetime.fromisoformat(each["time"]).timestamp() for each in self.logged("registered", resource=resource)
        ]


class Plugins:
    """Starts them, and ends those that a test has left running; with the administrator's rights, or others'."""

    def __init__(self, cluster: Host) -> None:
        self.kubeconfig = cluster.files.admin
        self._cluster = cluster
        self._started: list[Process] = []
        self._registrations: list[Path] = []  # sockets of drivers
        self._places = cluster.state / "plugins"
        self._places.mkdir(exist_ok=True)

    def run(self, resources: Resources, *flags: str) -> Daemon:
        """A new `plugwright run` with a configuration of its own."""
        place = self._place()
        configure(place, resources)
        return self._run(place.name, place, *flags)

    def run_again(self, ended: Daemon) -> Daemon:
        """A daemon that has ended once more, with its files as they are by now."""
        return self._run(f"{ended.place.name}-again", ended.place)

    def script(self, name: str, *arguments: str | Path) -> Process:
        """A plugin of our own, from the directory `scripts`."""
        place = self._place()
        return self._start(place.name, str(_SCRIPTS / f"{name}.py"), *map(str, arguments))

    def mutant(self, name: str, resource: str, *flags: str) -> Process:
        """The small plugin of the rules' tests, with one defect or, without a name, with none."""
        root = ("--root", str(self._cluster.kubelet_dir))
        mutant = (*(("--mutant", name) if name else ()), *(("--resource", resource) if resource else ()))
        return self._start(self._place().name, str(_SMALL_PLUGIN), *root, *mutant, *flags)

    def driver(self, name: str, mutant: str = "", node: str = "") -> Process:
        """The small driver of the rules' tests under this name, with one defect or none, on a node of another name."""
        self._registrations.append(self._cluster.kubelet_dir / "plugins_registry" / f"{name}-reg.sock")
        flags = ("--root", str(self._cluster.kubelet_dir), "--name", name, *(("--mutant", mutant) if mutant else ()))
        return self._start(self._place().name, str(_SMALL_DRIVER), *flags, node=node)

    def end(self) -> None:
        for process in self._started:
            process.stop()
            print(f"--- {process.log.name}", *process.lines(), sep="\n")  # shown with a test that fails
        for socket in self._registrations:  # some mutants leave theirs, which `plugwright doctor` finds in later tests
            socket.unlink(missing_ok=True)

    def _run(self, name: str, place: Path, *flags: str) -> Daemon:
        places = [f"--state-dir={place}", f"--control-socket={place / 'control.sock'}", "--log-format=json"]
        process = self._start(name, "-m", "plugwright", "run", f"--config={place / 'config.yaml'}", *places, *flags)
        return Daemon(self._cluster, process, place)

    def _place(self) -> Path:
        place = self._places / f"plugin-{len(list(self._places.iterdir())) + 1}"
        place.mkdir()
        return place

    def _start(self, name: str, *arguments: str, node: str = "") -> Process:
        cdi = str(self._cluster.state / "run" / "cdi")
        name_of_node = node or self._cluster.files.member.name
        claims = {"KUBECONFIG": str(self.kubeconfig), "NODE_NAME": name_of_node, "CDI_ROOT": cdi}  # of DRA drivers
        process = self._cluster.enclosure.start(name, sys.executable, *arguments, env=claims)
        self._started.append(process)
        with suppress(ProcessLookupError):  # one that has ended by itself has started, too
            until(f"{name} starts", lambda: process.pid)
        return process


def configure(place: Path, resources: Resources) -> None:
    """At once, so that nobody reads half of it. JSON is YAML too."""
    new = place / "new"
    new.write_text(json.dumps({"resources": [{"name": name, **_entry(keys)} for name, keys in resources.items()]}))
    new.replace(place / "config.yaml")


def _entry(keys: Mapping[str, object]) -> dict[str, object]:
    """Keys of mock devices, unless another family is named; `serve` is a key of every resource."""
    own = {key: value for key, value in keys.items() if key != "serve"}
    serve = {"serve": keys["serve"]} if "serve" in keys else {}
    return {**(own if "nvidia" in own else {"mock": own}), **serve}
