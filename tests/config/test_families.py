"""Device families of other packages: found by their entry points, and as strict as our own."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.processes import Node, ended, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.config import families
from plugwright.sdk.device_family import DeviceFamily

EXAMPLE = Path(__file__).parents[2] / "examples" / "tape_family"
BROKEN = {
    "lax.py": """
import msgspec
from plugwright.sdk.device_family import DeviceFamily
class Inner(msgspec.Struct):
    model: str = ""
class Lax(DeviceFamily):
    settings = dict[str, list[Inner]]
FAMILY = Lax()
NO_FAMILY = "text"
class Failing(DeviceFamily):
    settings = int
FAILING = Failing()
""",
    "crashing.py": "1 / 0\n",
}
BROKEN_ENTRY_POINTS = """
[plugwright.families]
lax = lax:FAMILY
text = lax:NO_FAMILY
failing = lax:FAILING
crashing = crashing:FAMILY
usb = crashing:FAMILY
"""
READ = """
import json, sys
from plugwright import ConfigError
from plugwright.config import schema
for text in json.load(open(sys.argv[1])):
    try:
        config = schema.read("file", text)
        result = [plugin.resource for plugin in config.plugins()]
    except ConfigError as error:
        result = str(error)
    print(json.dumps(result))
"""


def install(directory: Path, name: str, entry_points: str) -> None:
    """Lays out the metadata that pip would."""
    info = directory / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    info.joinpath("entry_points.txt").write_text(entry_points)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH with the example, and with a package whose families are broken."""
    directory = tmp_path / "packages"
    install(directory, "tape_family", "[plugwright.families]\ntape = tape_family:FAMILY\n")
    shutil.copy(EXAMPLE / "tape_family.py", directory)
    install(directory, "broken", BROKEN_ENTRY_POINTS)
    for name, text in BROKEN.items():
        directory.joinpath(name).write_text(text)
    return directory


async def read(packages: Path, *texts: str) -> list[object]:
    """The resources of each file, or its error."""
    files = packages.parent / "files.json"
    files.write_text(json.dumps(texts))
    result = await ended(python("-c", READ, files), {"PYTHONPATH": str(packages)})
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def resource(keys: str) -> str:
    return f"resources:\n  - name: a.b/c\n    {keys}\n"


async def test_a_family_of_another_package_is_as_strict_as_our_own(packages: Path) -> None:
    every = ", ".join(sorted([*families.BUILT_IN, "crashing", "failing", "lax", "tape", "text"]))
    two = "resources: [{name: a/b, tape: {vendor: HP}}, {name: a/c, tape: {vendor: HP}}]\n"
    assert await read(
        packages,
        resource("tape: {vendor: HP, rewind: false}"),
        resource("tape:\n      vender: HP"),
        resource("tape:\n      vendor: HP\n      rewind: maybe"),
        resource("tape: {}\n    usb: {}"),
        resource("tape:"),
        resource("tape: {}\n    count: 2"),
        resource("tape: {}\n    colour: red"),
        two,
    ) == [
        ["a.b/c"],
        "file:4: resources[0].tape: unknown key 'vender': did you mean 'vendor'?",
        'file:5: resources[0].tape.rewind: expected true or false, got the string "maybe"',
        "file:4: resources[0]: a resource must have one kind of device, got tape and usb",
        f"file:2: resources[0]: a resource must have one kind of device, got none; one of: {every}",
        "file:4: resources[0]: tape takes no key 'count' beside it",
        "file:4: resources[0]: unknown key 'colour'",
        "file:1: resources[1].tape.vendor: a/b has these drives already",
    ]


async def test_a_family_that_cannot_be_used_is_named_with_the_line_of_its_key(packages: Path) -> None:
    files = ["lax: {}", "text: {}", "crashing: {}", "failing: 1", 'usb: {vendor: "0403"}']
    lax, text, crashing, failing, usb = await read(packages, *map(resource, files))
    assert lax == (
        "file:3: resources[0]: the device family 'lax' must forbid unknown keys in Inner: derive FamilySettings"
    )
    assert text == "file:3: resources[0]: the device family 'text' must be a DeviceFamily, got lax:NO_FAMILY: 'text'"
    assert str(crashing).startswith("file:3: resources[0]: the device family 'crashing' cannot be loaded from crashing")
    assert failing == "file:3: resources[0].failing: its device family failed: NotImplementedError()"
    assert usb == ["a.b/c"]  # a key of our own stays our own


async def test_a_family_of_another_package_is_served(packages: Path, kubelet: ObservedKubelet, tmp_path: Path) -> None:
    for name in ("st0", "nst0", "st1"):
        device = tmp_path / "host/sys/class/scsi_tape" / name / "device"
        device.mkdir(parents=True)
        device.joinpath("vendor").write_text("HP\n" if name != "st1" else "IBM\n")
    node = Node(kubelet.paths.root)
    node.config.parent.mkdir()
    entry = {"name": "example.com/tape", "tape": {"vendor": "HP", "rewind": False}}
    node.config.write_text(json.dumps({"resources": [entry], "host": {"root": str(tmp_path / "host")}}))
    async with running(node.command(), {"PYTHONPATH": str(packages)}):
        tape = await kubelet.endpoint("example.com/tape", 1)
        [allocation] = await tape.client.allocate(["st0"])
    assert [host.host_path for host in allocation.nodes] == ["/dev/nst0"]


async def test_a_file_with_our_own_families_looks_for_no_entry_points(tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text("resources: [{name: a/b, paths: [/dev/fuse], count: 2}, {name: a/c, mock: {}, usb: }]")
    script = f"import pathlib, sys\nfrom plugwright.config import schema\nschema.load(pathlib.Path({str(file)!r}))"
    result = await ended(python("-c", f"{script}\nprint('importlib.metadata' in sys.modules)"))
    assert (result.out, result.err) == ("False\n", "")


@pytest.mark.parametrize("key", families.BUILT_IN)
def test_a_family_of_our_own_is_registered_under_its_key(key: str) -> None:
    assert isinstance(families.load(key), DeviceFamily)
    assert families.load(key) is families.load(key)
