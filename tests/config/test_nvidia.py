"""NVIDIA GPUs in the operator's file: what it may say, and what it may not."""

import re
import textwrap
from pathlib import Path

import pytest

from plugwright import ConfigError
from plugwright.config import schema
from plugwright.plugins.nvidia.config import Features, Ids, Strategy
from plugwright.plugins.nvidia.health import Action
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.selection import Mig, Pattern

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
    assert all(isinstance(each, Nvidia) for each in made)
    return [each for each in made if isinstance(each, Nvidia)]


def one(tmp_path: Path, nvidia: str) -> Nvidia:
    [plugin] = plugins(tmp_path, f"resources: [{{name: nvidia.com/gpu, nvidia: {nvidia}}}]")
    return plugin


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    [plugin] = plugins(tmp_path, EVERYTHING)
    options = plugin.options
    assert options.selection.include == Pattern(
        index=("0", "1:0"),
        uuid=("GPU-a",),
        pci=("3b:00.0",),
        model=("*A100*",),
        profile=("1g.5gb",),
        least=4 * 2**30,
        most=8 * 10**9,
    )
    assert (options.selection.exclude.index, options.selection.mig) == (("7",), Mig.MIXED)
    assert options.share is not None
    assert (options.share.replicas, options.share.most) == (4, 1)
    assert (options.strategies, options.ids) == ((Strategy.ENVVAR, Strategy.CDI_CRI), Ids.INDEX)
    assert (options.confine, options.packed, options.annotation_prefix) == (True, True, "example.com/")
    assert options.features == Features(gdrcopy=True, gds=True, mofed=True, imex=(0,), imex_required=True)
    assert (options.rules.action(94), options.rules.action(13), options.rules.quiet) == (Action.RESET, Action.QUIET, 60)
    places = options.places
    assert (places.root, places.host_root, places.dev_root) == (Path("/driver-root"), Path("/"), Path("/run/dev"))
    assert (places.cdi, places.vendor, places.libraries) == (
        Path("/etc/cdi"),
        "nvidia.com",
        ("/usr/local/nvidia/lib64",),
    )
    assert (plugin.watch.pace.rescan, options.write_specs) == (30, False)


def test_nothing_has_to_be_said(tmp_path: Path) -> None:
    options = one(tmp_path, "{}").options
    assert (options.strategies, options.share, options.confine) == ((Strategy.DEVICE_NODES,), None, False)


def test_the_resources_of_a_machine_are_watched_together(tmp_path: Path) -> None:
    first, second, other = plugins(
        tmp_path,
        """
resources:
  - {name: nvidia.com/gpu, nvidia: {simulate: t4, exclude: {index: 3}}}
  - {name: nvidia.com/gpu-shared, nvidia: {simulate: t4, select: {index: 3}}}
  - {name: nvidia.com/other, nvidia: {simulate: h200}}
""",
    )
    assert first.watch is second.watch
    assert first.watch is not other.watch


def test_a_reload_keeps_the_watch(tmp_path: Path) -> None:
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
    assert changed.watch is kept.watch


@pytest.mark.parametrize(
    ("nvidia", "text"),
    [
        ("{select: {colour: red}}", "unknown key 'colour'"),
        ("{simulate: dgx-9000}", "no machine is called 'dgx-9000'"),
        ("{share: {by: time-slicing}}", "a share says how a GPU is cut"),
        ("{strategy: []}", "at least one way"),
        ("{strategy: magic}", "invalid enum value 'magic'"),
        ("{select: {profile: 1g.5gb}}", "`mig: mixed`"),
        ("{health: {xids: {'79': quiet}}}", "Xid 79 needs a reset"),
        ("{health: {xids: {bad: reset}}}", "names its codes in quotes"),
        ("{driver: {root: here}}", "absolute path"),
        ("{select: {least: much}}", "a size looks like 40Gi"),
        ("{select: {index: first}}", "an index looks like 0"),
        ("{exclude: {uuid: [GPU-1, 7f3c]}}", "a UUID begins with GPU- or MIG-, not '7f3c'"),
        ("{exclude: {pci: 3b}}", "a PCI address looks like 0000:3b:00.0"),
        ("{cdi: {vendor: ../../etc}}", "CDI kind must look like vendor.com/class"),
        ("{cdi: {annotations: a b/}}", "a prefix of annotations looks like cdi.k8s.io/"),
        ("{simulate: /dev/zero}", "cannot read /dev/zero: it is no file"),
        ("{simulate: hgx-h100, share: {replicas: 100000}}", "try replicas: "),
        ("{simulate: t4, share: {memory: 20Gi}}", "no device is large enough"),
        ("{simulate: hgx-h100, share: {by: vgpu, memory: 1Mi}}", "try memory: "),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, nvidia: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:\d+: ") as refused:
        one(tmp_path, nvidia)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("{}", "{}", "asks for the same devices as nvidia.com/gpu"),
        ("{simulate: t4}", "{simulate: t4, select: {index: 1}}", "is asked for by nvidia.com/gpu and nvidia.com/more"),
        ("{select: {index: 1}}", "{select: {index: 1}, share: {replicas: 2}}", "asks for the same devices"),
    ],
)
def test_a_device_in_two_resources_is_an_error(tmp_path: Path, first: str, second: str, text: str) -> None:
    entries = f"resources: [{{name: nvidia.com/gpu, nvidia: {first}}}, {{name: nvidia.com/more, nvidia: {second}}}]"
    with pytest.raises(ConfigError, match=text):
        plugins(tmp_path, entries)


@pytest.mark.parametrize("name", ["nvidia.com/{colour}", "nvidia.com/{model", "nvidia.com/{}"])
def test_a_family_is_named_by_model_or_profile(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:1: resources\[0\].name: .* is not a resource name"):
        plugins(tmp_path, f"resources: [{{name: '{name}', nvidia: {{}}}}]")


def test_a_family_by_profile_is_of_parts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugwright.yaml:1: resources\[0\].nvidia: .*`mig: mixed`"):
        plugins(tmp_path, "resources: [{name: 'nvidia.com/mig-{profile}', nvidia: {}}]")


def test_a_family_does_not_ask_for_what_others_have(tmp_path: Path) -> None:
    text = """
resources:
  - {name: nvidia.com/gpu, nvidia: {simulate: dgx-a100-mig, mig: mixed}}
  - {name: "nvidia.com/mig-{profile}", nvidia: {simulate: dgx-a100-mig, mig: mixed}}
"""
    [whole] = plugins(tmp_path, text)  # the family's are made when the machine is seen
    assert whole.resource == "nvidia.com/gpu"
    with pytest.raises(ConfigError, match="is asked for by"):
        plugins(tmp_path, text.replace("}}\n  -", ", select: {profile: 1g.5gb}}}\n  -"))


@pytest.mark.parametrize("page", ["nvidia.md", "nvidia-sharing.md", "mock.md"])
def test_the_examples_of_the_docs_are_good(tmp_path: Path, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    files = [each for each in blocks if each.startswith("resources:")]
    entry = "resources:\n  - name: nvidia.com/gpu\n"
    files += [entry + textwrap.indent(each, "    ") for each in blocks if each.startswith("nvidia:")]
    assert files
    for number, each in enumerate(files):
        path = tmp_path / f"{number}.yaml"
        path.write_text(each)
        schema.load(path)
