"""What authors get wrong, one row each: a mistake ends in one line: what must be, what was there, where."""

import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from tests.cli.processes import ended, python
from tests.sdk.actors import recorded_log

from plugwright import Allocation, Device, Limits, Mount, Plugin, Settings, Timeouts
from plugwright.errors import PlugwrightError, PodRefused
from plugwright.sdk import cdi
from plugwright.sdk.logs import HumanFormatter
from plugwright.sdk.plugin_checks import check_plugins, warn_of_misspelt_methods
from plugwright.system.latest import Latest
from plugwright.testing import KubeletSettings, pod_requesting, running

TAPE = "example.com/tape"
HERE = "test_authors_mistakes.py"


class Good(Plugin):
    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0"), Device("st1")]


class Nameless(Good):
    resource = ""


class Dashed(Good):
    resource = "tape"


class Leased(Good):
    health_lease = -1.0


class Blind(Plugin):
    resource = TAPE


class Misspelt(Plugin):
    resource = TAPE

    def discovr(self) -> list[Device]:
        return []


def make(value: Callable[..., object], **arguments: object) -> Callable[[], object]:
    return lambda: value(**arguments)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    # values
    "an id that is a number": (make(Device, id=5), "device id must be a non-empty string, got 5"),
    "an id with a space": (make(Device, id="a b"), "device id must have no spaces .*, got 'a b'"),
    "a health of one's own": (
        make(Device, id="a", health="healthy"),
        "must be 'Healthy' or 'Unhealthy', got 'healthy'",
    ),
    "a NUMA node instead of a list": (make(Device, id="a", numa=0), "numa of 'a' must be a list, got 0"),
    "a NUMA node that is none": (
        make(Device, id="a", numa=[-2]),
        "NUMA nodes of 'a' must be .* or -1 for none, got -2",
    ),
    "a path that is relative": (make(Allocation, nodes=[Path("st0")]), "must be absolute, got 'st0'"),
    "a path that is a number": (make(Allocation, nodes=[5]), "nodes must be DeviceNode values or paths, got 5"),
    "a path instead of a list": (make(Allocation, nodes="/dev/st0"), "nodes must be a list, got '/dev/st0'"),
    "a mount of nothing": (make(Mount, host_path=None), "mount's host path must be absolute, got None"),
    "a number in env": (make(Allocation, env={"N": 1}), "the value of env N must be a string, got 1"),
    "a space in an annotation": (make(Allocation, annotations={"a b": ""}), "must have no spaces .*, got 'a b'"),
    "a CDI name without a kind": (make(Allocation, cdi=["st0"]), "must look like vendor.com/class=name, got 'st0'"),
    "a CDI kind without a class": (make(cdi.Spec, kind="tape", devices=[]), "'tape'"),
    # classes
    "no resource": (
        lambda: check_plugins([Nameless()]),
        rf"Nameless \({HERE}:\d+\) must have a resource name, .*got ''",
    ),
    "a name without a slash": (
        lambda: check_plugins([Dashed()]),
        rf"Dashed \({HERE}:\d+\): 'tape' is not a resource name: it must have one '/', as in example.com/fpga",
    ),
    "the class itself": (lambda: check_plugins([Good]), r"must be an instance, got the class Good: write Good\(\)"),
    "a list of plugins": (lambda: check_plugins([[Good()]]), r"must be a Plugin, got a list: write run\(\*plugins\)"),
    "a lease below zero": (
        lambda: check_plugins([Leased()]),
        rf"Leased \(.*{HERE}:\d+\): health_lease must be seconds from 0 to 86400, got -1.0",
    ),
    "another object": (lambda: check_plugins([5]), "must be an instance of a subclass of plugwright.Plugin, got 5"),
    "the same resource twice": (lambda: check_plugins([Good(), Good()]), f"two plugins serve {TAPE}"),
    "no discover": (
        lambda: check_plugins([Blind()]),
        rf"Blind \({HERE}:\d+\) must have a method discover\(\) .*, got none$",
    ),
    "a misspelt discover": (lambda: check_plugins([Misspelt()]), r"got none: rename discovr\(\) to discover\(\)\?"),
    # settings
    "a way of registration": (make(Settings, registration="nope"), "must be one of direct, watcher, got 'nope'"),
    "a release that is no name": (make(Settings, release="a//b"), "release of .* as namespace/name, got 'a//b'"),
    "limits in a dict": (make(Settings, limits={"allocate": 1}), "limits of the settings must be a Limits, got {'allo"),
    "timeouts in a number": (make(Settings, timeouts=5), "timeouts of the settings must be a Timeouts, got 5"),
    "a limit below zero": (make(Limits, allocate=-1), "limits.allocate of the settings must be a number .*, got -1"),
    "a timeout that is a text": (make(Timeouts, retry="1s"), "timeouts.retry of the settings must be .*, got '1s'"),
    "an endless timeout": (
        make(Timeouts, departed=float("inf")),
        "timeouts.departed of the settings must be .*, got inf",
    ),
    "a socket that is a number": (make(Settings, control_socket=5), "control_socket of .* must be a path, got 5"),
    "an address that is a number": (make(Settings, listen=9400), "listen of the settings must be a str, got 9400"),
}


@pytest.mark.parametrize(("mistake", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_before_the_start_is_refused_in_one_line(mistake: Callable[[], object], line: str) -> None:
    with pytest.raises(PlugwrightError, match=line) as caught:
        mistake()
    assert "\n" not in str(caught.value)


def test_strings_are_paths_in_settings() -> None:
    settings = Settings(control_socket="/x.sock", state_dir="/x", registration="watcher")  # type: ignore[arg-type]
    assert settings == Settings(
        control_socket=Path("/x.sock"), state_dir=Path("/x"), registration=settings.registration
    )
    assert settings.registration.value == "watcher"


def test_the_directory_of_the_node_is_the_state_directory_unless_it_is_set() -> None:
    assert Settings().node_directory is None
    assert Settings(state_dir=Path("/x")).node_directory == Path("/x")
    assert Settings(state_dir=Path("/x"), node_dir=Path("/n")).node_directory == Path("/n")
    assert Settings(node_dir=Path("/n")).node_directory == Path("/n")


class Alocate(Good):
    def alocate(self, devices: list[Device]) -> Allocation:
        return Allocation()


class Allocated(Good):
    def allocate(self, devices: object) -> Allocation:
        return self.allocated()

    def allocated(self) -> Allocation:
        return Allocation()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings as `run()` prints them."""
    return [HumanFormatter().format(record) for record in caplog.records if record.levelno >= logging.WARNING]


class Relase(Plugin):
    resource = "example.com/relase"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield []

    def relase(self, devices: object) -> None: ...

    def check_parameter(self, parameters: object) -> None: ...


def test_misspelt_methods_for_claims_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_misspelt_methods([Relase()])
    assert [record.__dict__["hint"] for record in caplog.records] == [
        "did you mean check_parameters?",
        "did you mean release?",
    ]


def test_a_misspelt_method_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_misspelt_methods([Alocate(), Allocated()])
    [line] = lines(caplog)
    assert "method is never called" in line
    assert f"Alocate ({HERE}:" in line
    assert "did you mean allocate?" in line


class Odd(Plugin):
    """Does whatever a test puts in."""

    resource = TAPE

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods: dict[str, Callable[..., Any]] = {
            "discover": lambda: [Device("st0"), Device("st1")],
            "allocate": lambda _: Allocation(),
            "pre_start": lambda _: None,
            **methods,
        }

    def discover(self) -> Any:
        return self._methods["discover"]()

    def allocate(self, devices: object) -> Any:
        return self._methods["allocate"](devices)

    def pre_start(self, devices: object) -> Any:
        return self._methods["pre_start"](devices)


def raises(*_: object) -> Any:
    values: dict[str, object] = {}
    return values["temp"]


RAISED = rf"failed: KeyError: 'temp' at tests/sdk/{HERE}:\d+ in raises"
DISCOVERED: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raises, rf"discover\(\) of {TAPE} {RAISED}"),
    "makes a value that cannot be": (
        lambda: [Device(5)],  # type: ignore[arg-type]
        rf"InvalidValue: device id must be a non-empty string, got 5 at tests/sdk/{HERE}:\d+ in <lambda>",
    ),
    "returns nothing": (lambda: None, "must yield lists of devices, got None"),
    "returns a device": (
        lambda: Device("st0"),
        r"must yield lists of devices, got the device 'st0' alone: write `yield \[",
    ),
    "returns a text": (lambda: "st0", "must yield lists of devices, got 'st0'"),
    "returns ids": (lambda: ["st0"], "must yield lists of devices, got 'st0' in a list"),
    "returns a device twice": (lambda: [Device("a"), Device("a")], "lists 'a' twice"),
    "returns devices without end": (
        lambda: iter([repeat(Device("a"))]),
        r"discover\(\) must yield at most 300,000 devices in a list",
    ),
}


@pytest.mark.parametrize(("discover", "line"), DISCOVERED.values(), ids=DISCOVERED)
async def test_a_discover_that(discover: Callable[[], Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(PlugwrightError, match=line) as caught:
        async with running(Odd(discover=discover), tmp_path, KubeletSettings(timeout=30)):
            pass
    assert "\n" not in str(caught.value)


ALLOCATED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (raises, rf"allocate\(\) of {TAPE} {RAISED}"),
    "returns nothing": (lambda _: None, "must return an Allocation, got None"),
    "returns a dict": (lambda _: {"env": {}}, "must return an Allocation, got {'env': {}}"),
    "makes a value that cannot be": (
        lambda _: Allocation(nodes=["st0"]),
        rf"InvalidValue: device node's host path must be absolute, got 'st0' at tests/sdk/{HERE}:\d+ in <lambda>",
    ),
}


@pytest.mark.parametrize(("allocate", "line"), ALLOCATED.values(), ids=ALLOCATED)
async def test_an_allocate_that(allocate: Callable[[Any], Any], line: str, tmp_path: Path) -> None:
    async with running(Odd(allocate=allocate), tmp_path, KubeletSettings(timeout=30)) as kubelet:
        with pytest.raises(PodRefused, match=line):
            await kubelet.admit(pod_requesting({TAPE: 1}))


async def test_a_pre_start_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    async with running(Odd(pre_start=raises), tmp_path, KubeletSettings(timeout=30)) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        assert re.search(rf"pre_start\(\) of {TAPE} {RAISED}", pod.containers["main"].message)


async def test_a_discover_that_spins_is_warned_of_once_and_slowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Spinning(Good):
        count = Latest(0)

        async def discover(self) -> AsyncIterator[list[Device]]:
            while True:
                self.count.publish(self.count.value + 1)
                yield [Device("st0")]

    spinning = Spinning()
    with recorded_log("plugwright.sdk.plugin_checks", caplog) as log:
        async with running(spinning, tmp_path, KubeletSettings(timeout=30)):
            await log.until("discover() yields lists without waiting")
            warned, began = spinning.count.value, time.monotonic()
            await spinning.count.until(lambda count: count >= warned + 4)
    assert time.monotonic() - began >= 0.3
    [line] = lines(caplog)
    assert f"resource={TAPE}" in line
    assert "wait for a change before the next yield" in line


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: None, "must return a list of devices, got None"),
        (lambda available: ["st9"], "must choose among the available devices, got 'st9'"),
        (list, "must return 1 devices, got 2"),
    ],
)
async def test_a_preference_that_is_corrected_is_warned_of_once(
    answer: Callable[[Any], Any], error: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosing(Good):
        def prefer(self, available: object, required: object, size: int) -> Any:
            return answer(available)

    async with running(Choosing(), tmp_path, KubeletSettings(timeout=30)) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
    assert pod.phase == "Running"
    [line] = lines(caplog)
    assert f"prefer() of {TAPE} {error}" in line


async def test_a_pod_with_a_resource_without_a_domain_is_found(tmp_path: Path) -> None:
    with pytest.raises(
        PlugwrightError, match=r"main.resources.limits\[tape\]: must be a standard resource for containers"
    ):
        async with running(Good(), tmp_path, KubeletSettings(timeout=30)) as kubelet:
            await kubelet.admit(pod_requesting({"tape": 1}))


START = """
from plugwright import Device, Plugin, run, Settings

class Tape(Plugin):
    resource = "example.com/tape"
    def discover(self):
        return [Device("st0")]

"""


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("run(Tape)", "plugwright: plugin must be an instance, got the class Tape: write Tape()"),
        ("run([Tape()])", "plugwright: plugin must be a Plugin, got a list: write run(*plugins)"),
        (
            "run(Tape(), settings=Settings(listen='{taken}'))",
            "plugwright: cannot listen on {taken}: Address already in use",
        ),
    ],
)
async def test_a_program_that_cannot_start_ends_with_one_line(call: str, line: str, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = START + call.format(taken=address)
        done = await ended(python("-c", code), {"PLUGWRIGHT_KUBELET_DIR": str(root)})
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == line.format(taken=address)
