"""Ordinary devices in the operator's file: valid resources, resources refused with their line, and their plugins."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
GOOD = {
    "a plain path": "paths: [/dev/fuse]\n    count: 10",
    "a path with all its keys": "paths: [{path: /dev/a*, to: '/b{index}', type: mount, permissions: r, readOnly: yes}]",
    "one selector": 'usb: {vendor: "0403", product: "0x6001", nodes: [tty]}',
    "several selectors": 'usb: [{vendor: "0403"}, {class: "0e", port: [1-1, "1-2.*"]}]',
    "virtual functions": 'pci: {pf: [ens1f0#0-3, "0000:3b:00.0"], vf: true, driver: vfio-pci, linkType: ethernet}',
    "shared adapters": "rdma: {linkType: infiniband}\n    together: true\n    count: 1000\n    ids: index",
    "interfaces": "net: {name: ens*}\n    cdi: true",
    "fpgas": "fpga: {layout: dfl, afu: d8424*}",
    "gpus": 'drm: {vendor: "1002", nodes: [render, kfd]}',
    "drives": "nvme: {model: Fast*, transport: pcie}\n    exclusive: true",
    "groups": "groups: [{paths: [/dev/video*, {path: /dev/snd/c*, optional: true}], count: 2}]\n    ids: gdp",
    "checks": "paths: [/dev/a]\n    health: [{link: up}, {driver: '*', failures: 3}, {command: [/bin/true, '{id}']}]",
    "danger on purpose": "paths: [/dev/mem]\n    dangerous: true",
}
REFUSED = {
    "an unknown key": ("paths: [/dev/a]\n    cuont: 2", r":4: resources\[0\]: unknown key 'cuont'"),
    "an unknown key of a selector": ("usb: {vender: a}", r":3: resources\[0\]\.usb: unknown key 'vender'"),
    "a wrong value in a list": ("pci:\n      - {}\n      - {vf: 1}", r":5: resources\[0\]\.pci\[1\]\.vf: expected"),
    "a path that is not absolute": ("paths: [dev/fuse]", r":3: resources\[0\]\.paths\[0\]: must be an absolute path"),
    "a path that leaves": ("paths: [/dev/../etc/shadow]", r":3: resources\[0\]\.paths: a path .* have no '\.\.'"),
    "an id without quotes": ("usb: {vendor: 0403}", r":3: resources\[0\]\.usb\.vendor: .* put it in quotes: \"0403\""),
    "an id that is none": ('usb: {vendor: "403"}', r":3: resources\[0\]\.usb: vendor must be four hexadecimal digits"),
    "a count of none": ("paths: [/dev/a]\n    count: 0", r":4: resources\[0\]\.count: expected an integer >= 1"),
    "permissions of no kind": ("paths: [/dev/a]\n    permissions: rx", r":4: resources\[0\]\.permissions: "),
    "permissions twice": ("paths: [/dev/a]\n    permissions: rr", r":4: resources\[0\]\.permissions: permissions of"),
    "a template of no kind": ("paths: [/dev/a]\n    env: {A: '{pcy}'}", r":4: resources\[0\]\.env: .*\{pcy\}"),
    "a range of no kind": ("pci: {pf: 'ens1#3-1'}", r":3: resources\[0\]\.pci: virtual functions must look like 0-3,7"),
    "two kinds": ("paths: [/dev/a]\n    usb: {}", r":4: resources\[0\]: .* one kind of device, got paths and usb$"),
    "a key of ours beside mock": ("mock: {}\n    count: 3", r":4: resources\[0\]: mock takes no key 'count' beside it"),
    "an empty group": ("groups: [{}]", r":3: resources\[0\]\.groups\[0\]: a group must have paths, usb, or both"),
    "two checks at once": ("paths: [/dev/a]\n    health: {link: up, driver: x}", r":4: .*health: a health check "),
    "no check": ("paths: [/dev/a]\n    health: {every: 3}", "a health check must have one of"),
    "a file without a condition": ("paths: [/dev/a]\n    health: {file: state}", "must have one of: equals"),
    "a command of no path": ("paths: [/dev/a]\n    health: {command: [nvme]}", "an absolute path first"),
    "an address of no kind": ("paths: [/dev/a]\n    health: {http: 127.0.0.1}", "must look like http://"),
    "a resource that CDI has no kind for": ("paths: [/dev/a]\n    cdi: true", "CDI kind "),
    "a variable of no kind": ("paths: [/dev/a]\n    env: {'A=B': c}", r":4: resources\[0\]\.env: .*'='"),
    "a limit without a file": ("paths: [/dev/a]\n    health: {link: up, below: 3}", ":4: .*below only applies to file"),
    "info without pci": ("paths: [/dev/a]\n    info: {'*': {a: b}}", ":4: .*info is only valid together with pci"),
    "nothing to look for": ("paths: []", r":3: resources\[0\]\.paths: must have at least one filter"),
    "the node's memory": ("paths: [/dev/mem]", r":3: resources\[0\]\.paths: /dev/mem is the memory of the node: needs"),
    "the runtime's socket": ("groups: [{paths: [/run/containerd/containerd.sock]}]", "container runtime's: needs"),
    "the host's root": ("paths: [{path: /, type: mount}]", "resources"),
}  # fmt: skip


def file(path: Path, entry: str, name: str = "example.com/thing") -> Path:
    path.joinpath("plugwright.yaml").write_text(f"resources:\n  - name: {name}\n    {entry}\n")
    return path / "plugwright.yaml"


@pytest.mark.parametrize("entry", GOOD.values(), ids=GOOD)
def test_a_good_resource_is_taken(tmp_path: Path, entry: str) -> None:
    [plugin] = schema.load(file(tmp_path, entry)).plugins()
    assert plugin.resource == "example.com/thing"


@pytest.mark.parametrize(("entry", "said"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_resource_is_refused_with_its_line(tmp_path: Path, entry: str, said: str) -> None:
    name = "example.com/3com" if "cdi" in entry else "example.com/thing"
    with pytest.raises(ConfigError) as caught:
        schema.load(file(tmp_path, entry, name))
    assert re.search(said, str(caught.value)), caught.value
    assert re.match(r"plugwright\.yaml:\d: ", str(caught.value))


def test_every_value_in_force_can_be_shown(tmp_path: Path) -> None:
    path = file(tmp_path, "paths: [/dev/fuse]\n    count: 10")
    shown = CliRunner().invoke(cli, ["run", "-c", str(path), "--print-config"], catch_exceptions=False).output
    assert re.search(r'resources\[0\]\.paths: \["/dev/fuse"\] +# plugwright.yaml:3', shown)
    assert re.search(r"resources\[0\]\.count: 10 +# plugwright.yaml:4", shown)
    assert re.search(r"resources\[0\]\.dangerous: false +# default", shown)


def test_plugins_are_made_again_when_the_host_or_an_exclusive_resource_changes(tmp_path: Path) -> None:
    text = "resources: [{name: a/b, paths: [/dev/a], exclusive: true}, {name: a/c, paths: [/dev/*]}]\n"
    path = tmp_path / "plugwright.yaml"
    path.write_text(text)
    before = schema.load(path)
    serving = {plugin.resource: plugin for plugin in before.plugins()}
    path.write_text(text.replace("/dev/*", "/dev/b*"))
    assert schema.load(path).plugins(before, serving)[0] is serving["a/b"]
    for change in (text + "host: {root: /host}\n", text.replace("/dev/a", "/dev/b")):
        path.write_text(change)
        assert all(plugin is not serving[plugin.resource] for plugin in schema.load(path).plugins(before, serving))


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "devices.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", EXAMPLES, ids=[example.splitlines()[0] for example in EXAMPLES])
def test_every_example_of_the_documentation_is_good(tmp_path: Path, text: str) -> None:
    indented = "\n".join(f"  {line}" for line in text.splitlines())
    path = tmp_path / "plugwright.yaml"
    path.write_text(text if re.search("^resources:", text, re.MULTILINE) else f"resources:\n{indented}\n")
    assert schema.load(path).plugins()


def test_there_is_an_example_of_every_kind() -> None:
    text = "\n".join(EXAMPLES)
    assert [
        kind
        for kind in ("paths", "usb", "pci", "rdma", "net", "fpga", "drm", "nvme", "groups")
        if f"{kind}:" not in text
    ] == []
