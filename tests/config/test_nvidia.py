"""The key `nvidia` of the operator's file: its settings, and the errors for invalid ones."""

import re
import textwrap
from pathlib import Path

import pytest

from plugwright import ConfigError
from plugwright.config import schema
from plugwright.plugins.nvidia import selection
from plugwright.plugins.nvidia.config import DeviceIdStrategy, DeviceListStrategy, MigStrategy
from plugwright.plugins.nvidia.health import xid_action
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.selection import DevicePattern
from plugwright.plugins.nvidia.xids import XidAction

EVERYTHING = """
resources:
  - name: nvidia.com/gpu
    nvidia:
      select: {index: [0, "1:0"], uuid: GPU-a, pci: ["3b:00.0"], model: "*A100*", profile: 1g.5gb, least: 4Gi, most: 8G}
      exclude: {index: 7}
      mig: mixed
      share: {replicas: 4, most: 1}
      strategy: [envvar, cdi-cri]
      ids: index
      confine: cdi
      prefer: packed
      rescan: 30
      health: {xids: {"94": reset, "13": quiet}, other: ignore, quiet: 60, ecc: false, pending: true, unwatched: false}
      driver: {root: /driver-root, host: /, dev: /run/dev, libraries: [/usr/local/nvidia/lib64]}
      cdi: {write: false, dir: /etc/cdi, vendor: nvidia.com, annotations: example.com/}
      gdrcopy: true
      gds: true
      mofed: true
      imex: {channels: [0], required: true}
"""


def plugins(tmp_path: Path, text: str) -> list[Nvidia]:
    path = tmp_path / "plugwright.yaml"
    path.write_text(text)
    made = schema.load(path).plugins()
    assert all(isinstance(plugin, Nvidia) for plugin in made)
    return [plugin for plugin in made if isinstance(plugin, Nvidia)]


def one(tmp_path: Path, nvidia: str) -> Nvidia:
    [plugin] = plugins(tmp_path, f"resources: [{{name: nvidia.com/gpu, nvidia: {nvidia}}}]")
    return plugin


def test_every_setting_reaches_the_plugin(tmp_path: Path) -> None:
    [plugin] = plugins(tmp_path, EVERYTHING)
    config = plugin.config
    selected = selection.from_config(config)
    assert selected.include == DevicePattern(
        index=("0", "1:0"),
        uuid=("GPU-a",),
        pci=("3b:00.0",),
        model=("*A100*",),
        profile=("1g.5gb",),
        least=4 * 2**30,
        most=8 * 10**9,
    )
    assert (selected.exclude.index, selected.mig) == (("7",), MigStrategy.MIXED)
    assert config.share is not None
    assert (config.share.replicas, config.share.most) == (4, 1)
    assert config.strategies == [DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI]
    assert (config.ids, config.confine, config.packed) == (DeviceIdStrategy.INDEX, "cdi", True)
    assert (config.gdrcopy, config.gds, config.mofed) == (True, True, True)
    assert (config.imex_channels, config.imex.required) == ([0], True)
    rules = config.health
    assert (xid_action(rules, 94), xid_action(rules, 13), rules.quiet) == (XidAction.RESET, XidAction.QUIET, 60)
    driver = config.driver
    assert (driver.root, driver.host, driver.dev) == ("/driver-root", "/", "/run/dev")
    assert driver.libraries == ["/usr/local/nvidia/lib64"]
    assert (config.cdi.dir, config.cdi.vendor, config.cdi.annotations) == ("/etc/cdi", "nvidia.com", "example.com/")
    assert (plugin.monitor.intervals.rescan, config.cdi.write) == (30, False)


def test_every_setting_has_a_default(tmp_path: Path) -> None:
    config = one(tmp_path, "{}").config
    assert (config.strategies, config.share, config.confine) == ([DeviceListStrategy.DEVICE_NODES], None, "env")


def test_resources_of_one_machine_share_a_monitor(tmp_path: Path) -> None:
    first, second, other = plugins(
        tmp_path,
        """
resources:
  - {name: nvidia.com/gpu, nvidia: {simulate: t4, exclude: {index: 3}}}
  - {name: nvidia.com/gpu-shared, nvidia: {simulate: t4, select: {index: 3}}}
  - {name: nvidia.com/other, nvidia: {simulate: h200}}
""",
    )
    assert first.monitor is second.monitor
    assert first.monitor is not other.monitor


def test_a_reload_keeps_the_monitor(tmp_path: Path) -> None:
    path = tmp_path / "plugwright.yaml"
    entry = "{{name: nvidia.com/{}, nvidia: {{simulate: t4, select: {{index: {}}}}}}}"
    path.write_text(f"resources: [{entry.format('a', 0)}, {entry.format('b', 1)}]")
    before = schema.load(path)
    serving = {plugin.resource: plugin for plugin in before.plugins()}
    path.write_text(f"resources: [{entry.format('a', 2)}, {entry.format('b', 1)}]")
    changed, kept = schema.load(path).plugins(before, serving)
    assert kept is serving["nvidia.com/b"]
    assert isinstance(changed, Nvidia)
    assert isinstance(kept, Nvidia)
    assert changed.monitor is kept.monitor


@pytest.mark.parametrize(
    ("nvidia", "text"),
    [
        ("{select: {colour: red}}", "unknown key 'colour'"),
        ("{simulate: dgx-9000}", "or the path of a file, got 'dgx-9000'"),
        ("{share: {by: time-slicing}}", "share must set replicas, memory or percent"),
        ("{strategy: []}", "at least one way"),
        (
            "{strategy: magic}",
            "must be one of envvar, volume-mounts, device-nodes, cdi-annotations, cdi-cri, got 'magic'",
        ),
        ("{select: {profile: 1g.5gb}}", "`mig: mixed`"),
        ("{health: {xids: {'79': quiet}}}", "Xid 79 needs a reset"),
        ("{health: {xids: {bad: reset}}}", "a code must be a number in quotes"),
        ("{driver: {root: here}}", "must be absolute"),
        ("{select: {least: much}}", "a size must look like 40Gi"),
        ("{select: {index: first}}", "an index must look like 0"),
        ("{exclude: {uuid: [GPU-1, 7f3c]}}", "a UUID must begin with GPU- or MIG-, got '7f3c'"),
        ("{exclude: {pci: 3b}}", "a PCI address must look like 0000:3b:00.0"),
        ("{cdi: {vendor: ../../etc}}", "vendor.com/class"),
        ("{cdi: {annotations: a b/}}", "cdi.annotations must be a prefix such as cdi.k8s.io/"),
        ("{simulate: /dev/zero}", "cannot read /dev/zero: it is not a regular file"),
        ("{simulate: hgx-h100, share: {replicas: 100000}}", "try replicas: "),
        ("{simulate: t4, share: {memory: 20Gi}}", "no device is large enough"),
        ("{simulate: hgx-h100, share: {by: vgpu, memory: 1Mi}}", "try memory: "),
    ],
)
def test_invalid_settings_are_refused_with_their_line(tmp_path: Path, nvidia: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:\d+: ") as refused:
        one(tmp_path, nvidia)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("{}", "{}", "selects the same devices as nvidia.com/gpu"),
        ("{simulate: t4}", "{simulate: t4, select: {index: 1}}", "is selected by nvidia.com/gpu and nvidia.com/more"),
        ("{select: {index: 1}}", "{select: {index: 1}, share: {replicas: 2}}", "selects the same devices"),
    ],
)
def test_a_device_in_two_resources_is_an_error(tmp_path: Path, first: str, second: str, text: str) -> None:
    entries = f"resources: [{{name: nvidia.com/gpu, nvidia: {first}}}, {{name: nvidia.com/more, nvidia: {second}}}]"
    with pytest.raises(ConfigError, match=text):
        plugins(tmp_path, entries)


@pytest.mark.parametrize("name", ["nvidia.com/{colour}", "nvidia.com/{model", "nvidia.com/{}"])
def test_a_name_template_has_model_or_profile_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:1: resources\[0\].name: .* is not a resource name"):
        plugins(tmp_path, f"resources: [{{name: '{name}', nvidia: {{}}}}]")


def test_a_template_by_profile_needs_a_mig_strategy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:1: resources\[0\].nvidia: .*`mig: mixed`"):
        plugins(tmp_path, "resources: [{name: 'nvidia.com/mig-{profile}', nvidia: {}}]")


def test_a_template_that_overlaps_another_resource_is_refused(tmp_path: Path) -> None:
    text = """
resources:
  - {name: nvidia.com/gpu, nvidia: {simulate: dgx-a100-mig, mig: mixed}}
  - {name: "nvidia.com/mig-{profile}", nvidia: {simulate: dgx-a100-mig, mig: mixed}}
"""
    [whole] = plugins(tmp_path, text)  # those of the template follow when the machine is read
    assert whole.resource == "nvidia.com/gpu"
    with pytest.raises(ConfigError, match="is selected by"):
        plugins(tmp_path, text.replace("}}\n  -", ", select: {profile: 1g.5gb}}}\n  -"))


@pytest.mark.parametrize("page", ["nvidia.md", "nvidia-sharing.md", "mock.md"])
def test_examples_in_the_docs_are_valid(tmp_path: Path, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    files = [block for block in blocks if block.startswith("resources:")]
    entry = "resources:\n  - name: nvidia.com/gpu\n"
    files += [entry + textwrap.indent(block, "    ") for block in blocks if block.startswith("nvidia:")]
    assert files
    for number, content in enumerate(files):
        path = tmp_path / f"{number}.yaml"
        path.write_text(content)
        schema.load(path)
