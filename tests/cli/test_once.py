"""`plugwright run --once`: what would be listed and answered, with nothing left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.processes import Ended, Node, ended
from tests.config.test_families import install

from plugwright.config import families
from plugwright.sdk.device_family import DeviceFamily

ODD = """
import asyncio
import time
from plugwright import Allocation, Device, Plugin
from plugwright.errors import HardwareMissing
from plugwright.sdk.device_family import DeviceFamily, FamilySettings

class Settings(FamilySettings, frozen=True):
    does: str = ""
    told: bool = True

class Odd(Plugin):
    def __init__(self, resource, does):
        self.resource, self.does = resource, does

    async def discover(self):
        if self.does == "block":
            time.sleep(600)
        if self.does == "hang":
            await asyncio.Event().wait()
        if self.does == "ignore":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
        if self.does == "raise":
            raise OSError("no such bus")
        if self.does == "miss":
            raise HardwareMissing("no driver")
        if self.does == "list nothing":
            self.empty_reason = "nothing matches"
            yield []
        if self.does == "lie":
            yield [Device("twice"), Device("twice")]
        if self.does != "end":
            yield [Device("one"), Device("two"), Device("worn", "Unhealthy", "worn out")]

    def allocate(self, devices):
        if self.does == "hang in allocate":
            time.sleep(600)
        if self.does == "fail for two" and devices[0].id == "two":
            raise OSError("no such channel")
        return Allocation(env={"ODD": devices[0].id})

class OddFamily(DeviceFamily):
    settings = Settings

    def plugin(self, entry, context):
        return Odd(entry.name, entry.settings.does)

    def redirected(self, entry, directory):
        return entry if entry.settings.told else None

FAMILY = OddFamily()
"""


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)


async def once(node: Node, *resources: Any, flags: tuple[object, ...] = (), **host: Any) -> Ended:
    node.config.parent.mkdir(exist_ok=True)
    node.config.write_text(json.dumps({"resources": resources, "host": host}))
    packages = node.root / "packages"
    if not packages.exists():
        install(packages, "odd_family", "[plugwright.families]\nodd = odd:FAMILY\n")
        packages.joinpath("odd.py").write_text(ODD)
    return await ended(node.command("--once", *flags), {"PYTHONPATH": str(packages)})


async def report(node: Node, *resources: Any, code: int = 0, timeout: float = 60, **host: Any) -> Any:
    """The resources by their names."""
    done = await once(node, *resources, flags=("-o", "json", "--timeout", timeout), **host)
    assert done.code == code, done.err
    found = json.loads(done.out)["resources"]
    assert [resource["name"] for resource in found] == sorted(resource["name"] for resource in found)
    return {resource["name"]: resource for resource in found}


def tree(*directories: Path) -> dict[str, tuple[float, str]]:
    """Every file and directory with its time and content."""
    paths = [path for directory in directories for path in (directory, *directory.rglob("*"))]
    return {str(path): (path.stat().st_mtime, path.read_text() if path.is_file() else "") for path in paths}


async def test_mock_devices_are_listed_with_their_allocations(node: Node) -> None:
    shown = await report(node, {"name": "mock/gpu", "mock": {"count": 2, "nodes": True, "facts": "/var/lib/facts"}})
    first, second = shown["mock/gpu"]["devices"]
    assert first == {
        "id": "mock-0-d2006724", "health": "Healthy", "reason": "", "numa": [0], "error": "",
        "attributes": {"index": 0, "model": "Mock", "links": {}, "resource.kubernetes.io/numaNode": 0},
        "capacity": {"memory": 2**34},
        "allocation": {
            "env": {"MOCK_MEMORY": str(2**34), "MOCK_MODEL": "Mock", "MOCK_VISIBLE_DEVICES": "mock-0-d2006724"},
            "mounts": [{
                "host_path": "/var/lib/facts/mock_gpu/mock-0-d2006724.json",
                "container_path": "/run/mock/mock-0-d2006724.json", "read_only": True,
            }],
            "nodes": [{"host_path": "/dev/null", "container_path": "/dev/mock0", "permissions": "rw"}],
            "annotations": {}, "cdi": [],
        },
    }  # fmt: skip
    assert second["allocation"]["env"]["MOCK_VISIBLE_DEVICES"] == second["id"]


async def test_text_has_a_line_for_each_part_of_the_response(node: Node) -> None:
    done = await once(node, {"name": "mock/gpu", "mock": {"count": 1, "nodes": True}})
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "mock/gpu  1 of 1 healthy",
        "  mock-0-d2006724  Healthy, NUMA 0",
        '    env MOCK_MEMORY="17179869184"',
        '    env MOCK_MODEL="Mock"',
        '    env MOCK_VISIBLE_DEVICES="mock-0-d2006724"',
        "    node /dev/null at /dev/mock0, rw",
    ]


async def test_paths_that_exist_are_listed_with_their_nodes(node: Node, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.joinpath("dev").mkdir(parents=True)
    for name in ("ttyS0", "ttyS1"):
        host.joinpath("dev", name).touch()
    shown = await report(
        node,
        {"name": "a.b/tty", "paths": ["/dev/ttyS*"]},
        {"name": "a.b/none", "paths": ["/dev/fuse9"]},
        root=str(host),
    )
    nodes = [device["allocation"]["nodes"][0]["host_path"] for device in shown["a.b/tty"]["devices"]]
    assert nodes == ["/dev/ttyS0", "/dev/ttyS1"]
    assert shown["a.b/none"]["devices"] == []


async def test_yaml_contains_the_same_as_json(node: Node) -> None:
    entry = {"name": "mock/gpu", "mock": {"count": 2}}
    as_yaml, as_json = [await once(node, entry, flags=("-o", style)) for style in ("yaml", "json")]
    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)
    assert as_yaml.out.startswith("resources:\n")


async def test_names_of_templates_are_those_of_the_machine(node: Node) -> None:
    literal = {"name": "nvidia.com/mig-1g.5gb", "mock": {"count": 1}}
    template = {"name": "nvidia.com/mig-{profile}", "nvidia": {"simulate": "dgx-a100-mig", "mig": "mixed"}}
    shown = await report(node, template, code=0)
    assert len(shown["nvidia.com/mig-1g.5gb"]["devices"]) == 14
    done = await once(node, template, literal, flags=("-o", "json"))
    assert done.code == 1
    refused = {"nvidia.com/mig-1g.5gb": "made of nvidia.com/mig-{profile}: another resource of the file has this name"}
    assert json.loads(done.out)["refused_names"] == refused
    shown = {resource["name"]: resource for resource in json.loads(done.out)["resources"]}
    assert {name: len(resource["devices"]) for name, resource in shown.items()} == {
        "nvidia.com/mig-1g.5gb": 1,
        "nvidia.com/mig-2g.10gb": 3,
        "nvidia.com/mig-3g.20gb": 2,
    }


async def test_nothing_is_left_behind_and_a_tenants_files_stay(node: Node, tmp_path: Path) -> None:
    """Allocate of each of these writes files: CDI specs, facts, the limits of a vgpu tenant."""
    library, node_file = tmp_path / "libvgpu.so", tmp_path / "host" / "dev" / "ttyS0"
    node_file.parent.mkdir(parents=True)
    for file in (library, node_file):
        file.touch()
    vgpu = {"library": str(library), "root": str(tmp_path / "vgpu"), "locks": str(tmp_path / "locks")}
    share = {"by": "vgpu", "library": "hami", "memory": "8Gi", "vgpu": vgpu}
    cdi = {"dir": str(tmp_path / "nvidia-cdi")}
    resources = (
        {"name": "mock/gpu", "mock": {"count": 1, "facts": str(tmp_path / "facts")}},
        {"name": "a.b/tty", "paths": ["/dev/ttyS*"], "cdi": True},
        {
            "name": "nvidia.com/gpu",
            "nvidia": {
                "simulate": "t4", "strategy": "cdi-cri", "confine": "cdi", "cdi": cdi, "select": {"index": 0},
                "share": share,
            },
        },
    )  # fmt: skip
    host: dict[str, Any] = {
        "root": str(tmp_path / "host"), "cdi": str(tmp_path / "cdi"), "deviceInfo": str(tmp_path / "info"),
    }  # fmt: skip
    before = tree(tmp_path)
    shown = await report(node, *resources, **host)
    assert tree(tmp_path) == before
    [device] = shown["nvidia.com/gpu"]["devices"]
    cache = next(
        mount["host_path"]
        for mount in device["allocation"]["mounts"]
        if mount["host_path"].startswith(f"{tmp_path}/vgpu/containers/")
    )
    [tty] = shown["a.b/tty"]["devices"]
    assert tty["allocation"]["cdi"] == ["a.b/tty=ttyS0"]

    tenant = Path(cache) / "usage.cache"
    tenant.parent.mkdir(parents=True)
    tenant.write_text("a running container counts here")
    before = tree(tmp_path)
    await report(node, *resources, **host)
    assert tree(tmp_path) == before
    assert {path.name for path in node.root.iterdir()} == {"etc", "packages"}  # no socket, no state


async def test_each_error_is_shown_with_its_resource_and_the_others_are_complete(node: Node) -> None:
    does = ["hang", "ignore", "raise", "lie", "end", "hang in allocate", "fail for two", ""]
    odd = [{"name": f"odd/{number}", "odd": {"does": what}} for number, what in enumerate(does)]
    untold = {"name": "odd/untold", "odd": {"told": False}}
    template = {"name": "nvidia.com/{model}-none", "nvidia": {"simulate": "t4", "select": {"model": "none"}}}
    shown = await report(node, *odd, untold, template, {"name": "mock/gpu", "mock": {}}, code=1, timeout=6)
    errors = {name: resource["error"] for name, resource in shown.items()}
    assert errors == {
        "mock/gpu": "",
        "nvidia.com/{model}-none": "no device to make a name of was found within 6 s",
        "odd/0": "did not end within 6 s",
        "odd/1": "did not end within 6 s",
        "odd/2": "discover() of odd/2 failed: OSError: no such bus at odd.py:28 in discover",
        "odd/3": errors["odd/3"],
        "odd/4": "discover() of odd/4 ended without a list",
        "odd/5": errors["odd/5"],
        "odd/6": "",
        "odd/7": "",
        "odd/untold": "",
    }
    assert "twice" in errors["odd/3"]
    assert "within 6 s" in errors["odd/5"]
    assert len(shown["mock/gpu"]["devices"]) == 8
    assert [device["id"] for device in shown["odd/5"]["devices"]] == ["one", "two", "worn"]
    one, two, worn = shown["odd/6"]["devices"]
    assert one["allocation"]["env"] == {"ODD": "one"}
    assert two["error"] == "allocate() of odd/6 failed: OSError: no such channel at odd.py:43 in allocate"
    assert "worn out" in worn["error"]
    assert not any(device["allocation"] for device in shown["odd/untold"]["devices"])
    assert "does not declare where it writes" in shown["odd/untold"]["devices"][0]["error"]


async def test_unhealthy_devices_are_no_failure(node: Node) -> None:
    shown = await report(node, {"name": "odd/fine", "odd": {}})
    assert [device["health"] for device in shown["odd/fine"]["devices"]] == ["Healthy", "Healthy", "Unhealthy"]


async def test_a_plugin_that_blocks_the_event_loop_is_named(node: Node) -> None:
    shown = await report(node, {"name": "odd/blocks", "odd": {"does": "block"}}, code=1, timeout=3)
    said = "did not end within 3 s: discover() of odd/blocks blocks the event loop"
    assert shown["odd/blocks"] == {"name": "odd/blocks", "error": said, "idle": "", "empty": "", "devices": []}


async def test_flags_for_once_alone_are_refused(node: Node) -> None:
    node.configure(gpu={"count": 1})
    for flags in (["-o", "json"], ["--timeout", "3"]):
        done = await ended(node.command(*flags))
        assert done.code == 2
        assert done.err.splitlines()[-1] == "Error: --output and --timeout are for --once"


@pytest.mark.parametrize("key", sorted(families.BUILT_IN))
def test_every_family_of_our_own_says_where_it_writes(key: str) -> None:
    family = families.load(key)
    assert type(family).redirected is not DeviceFamily.redirected


async def test_a_resource_without_hardware_or_devices_says_why_and_is_no_failure(node: Node) -> None:
    resources = [
        {"name": f"a.b/{name}", "odd": {"does": does}} for name, does in (("c", "miss"), ("d", "list nothing"))
    ]
    done = await once(node, *resources)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "a.b/c  0 of 0 healthy",
        "  idle: no driver",
        "a.b/d  0 of 0 healthy",
        "  empty: nothing matches",
    ]
