"""The operator's file: a valid one is read, an invalid one is refused with its line."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.errors import ConfigError
from plugwright.sdk.device_family import byte_size

GPU = "resources:\n  - name: mock/gpu\n"
CORDONS = """\
cordons:
  - resource: mock/gpu
    id: [a, b*]
    attributes: {index: [1, 2], model: x, ecc: true}
    reason: fan
    until: 2026-12-01T08:00:00Z
  - {resource: mock/*, reason: rack, until: '2099-01-01T00:00:00+01:00'}
"""
GOOD = {
    "no resources": ("resources: []\n", 0),
    "all defaults": (GPU + "    mock: {}\n", 1),
    "the least": (GPU + "    mock: {count: 0, numa: 0, memory: 0}\n", 1),
    "the most": (GPU + "    mock: {count: 100000, numa: 64, links: full, nodes: true, facts: /run/facts}\n", 1),
    "two resources": ("resources: [{name: a.b/c, mock: {}}, {name: a.b/d, mock: {memory: 40Gi}}]\n", 2),
    "an alias": ("resources: [{name: a/b, mock: &kind {count: 2}}, {name: a/c, mock: *kind}]\n", 2),
    "a merged mapping": ("resources:\n  - &one {name: a/b, mock: {}}\n  - {<<: *one, name: a/c}\n", 2),
    "cordons": (GPU + "    mock: {}\n" + CORDONS, 1),
    "a byte-order mark": ("\ufeffresources: []\n", 0),
    "document marks": ("---\nresources: []\n...\n", 0),
}
MISSHAPEN = {
    "an unknown key of the file": (
        "resources: []\nresorces: []\n",
        ":2: unknown key 'resorces': did you mean 'resources'?",
    ),
    "a cordon without a reason": (
        GPU + "    mock: {}\ncordons: [{resource: mock/gpu}]\n",
        ":4: cordons[0]: the key 'reason' is missing",
    ),
    "a cordon of an unknown resource": (
        GPU + "    mock: {}\ncordons:\n  - reason: x\n    resource: mock/gpus\n",
        ":6: cordons[0].resource: no resource of this file is called mock/gpus (it has: mock/gpu)",
    ),
    "a cordon until a time without a zone": (
        GPU + "    mock: {}\ncordons: [{resource: mock/gpu, reason: x, until: 2026-12-01T08:00:00}]\n",
        ":4: cordons[0]: until must have a zone, as 2026-12-01T08:00:00Z has",
    ),
    "a cordon by an unknown key": (
        GPU + "    mock: {}\ncordons: [{resource: mock/gpu, reason: x, ids: [a]}]\n",
        ":4: cordons[0]: unknown key 'ids'",
    ),
    "nothing for the resources": ("resources: null\n", ":1: resources: expected a list, got nothing"),
    "a mapping for the resources": ("resources: {}\n", ":1: resources: expected a list"),
    "a text for a resource": ("resources:\n  - mock/gpu\n", ":2: resources[0]: expected a mapping"),
    "a text for the file": ("just a text\n", ":1: expected a mapping"),
    "a list for the file": ("- a\n- b\n", ":1: expected a mapping"),
    "a date for the file": ("2024-01-01\n", ":1: expected a mapping"),
    "an empty file": ("", ":1: the file is empty: the key 'resources' is missing"),
    "only a comment": ("# to be done\n", ":1: the file is empty: the key 'resources' is missing"),
    "another file": ("host: {}\n", ":1: the key 'resources' is missing"),
    "a relative path of the host": (
        "resources: []\nhost: {root: host}\n",
        ":2: host.root: must be an absolute path, got 'host'",
    ),
}
WRONG_RESOURCE = {
    "an unknown key": ("{name: a/b, mock: {}, cuont: 1}", ": unknown key 'cuont'"),
    "an unknown kind": ("{name: a/b, nvidya: {}}", ": unknown key 'nvidya': did you mean 'nvidia'?"),
    "no kind": ("{name: a/b}", ": a resource must have one kind of device, got none; one of: "),
    "nothing for a kind": ("{name: a/b, mock: }", ": a resource must have one kind of device, got none; one of: "),
    "two kinds": ("{name: a/b, mock: {}, usb: {}}", ": a resource must have one kind of device, got mock and usb"),
    "a list for a kind": ("{name: a/b, mock: []}", ".mock: expected"),
    "no name": ("{mock: {}}", ": the key 'name' is missing"),
    "a number for a name": (
        "{name: 07, mock: {}}",
        '.name: expected a string, got the integer 07: put it in quotes: "07"',
    ),
    "a name without a domain": ("{name: gpu, mock: {}}", ".name: 'gpu' is not a resource name: it must have one '/'"),
    "a name of Kubernetes' own": ("{name: kubernetes.io/gpu, mock: {}}", ".name: 'kubernetes.io/gpu' is not a"),
    "a name in capitals": ("{name: Mock/gpu, mock: {}}", ".name: 'Mock/gpu' is not a resource name"),
}
WRONG_MOCK = {
    "an unknown key": ("modle: A", ": unknown key 'modle': did you mean 'model'?"),
    "a text for a number": ("count: many", ".count: expected an integer"),
    "a fraction for a number": ("count: 1.5", ".count: expected an integer"),
    "a count below zero": ("count: -1", ".count: expected an integer >= 0"),
    "a count above the limit": ("count: 100001", ".count: expected an integer <= 100000"),
    "a count beyond 64 bits": (f"count: {10**40}", ".count: "),
    "a count below 64 bits": (f"count: {-(10**40)}", ".count: "),
    "too many NUMA nodes": ("numa: 65", ".numa: expected an integer <= 64"),
    "a number for a text": ("seed: 7", ".seed: expected a string, got the integer 7"),
    "a text for a switch": ("nodes: maybe", ".nodes: expected true or false"),
    "a switch for a size": ("memory: true", ".memory: expected"),
    "a size of no unit": ("memory: 40Gx", ": a size must look like 40Gi, got '40Gx'"),
    "a size below zero": ("memory: -5", ": a size must look like 40Gi, got -5"),
    "a size with a fraction": ("memory: 1.5Gi", ": a size must look like 40Gi, got '1.5Gi'"),
    "an empty size": ("memory: ''", ": a size must look like 40Gi, got ''"),
    "links of no kind": ("links: star", ".links: must be one of none, pairs, ring, full, got 'star'"),
    "facts that depend on where we run": ("facts: facts", ": facts must be an absolute path, got 'facts'"),
}
UNHURRIED = trying(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plugwright.yaml"


def refused(path: Path, text: str) -> str:
    """The error for `text`, in one line."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        schema.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("text", "count"), GOOD.values(), ids=GOOD)
def test_a_good_file_is_called_good(path: Path, text: str, count: int) -> None:
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(cli, ["run", "--check", "-c", str(path)], catch_exceptions=False)
    assert (result.exit_code, result.output) == (0, f"{path}: {count} resource{'' if count == 1 else 's'}, valid\n")


@pytest.mark.parametrize(("text", "said"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_file_of_the_wrong_shape_is_refused_with_its_line(path: Path, text: str, said: str) -> None:
    assert refused(path, text).startswith(f"plugwright.yaml{said}")


@pytest.mark.parametrize(("entry", "said"), WRONG_RESOURCE.values(), ids=WRONG_RESOURCE)
def test_a_wrong_resource_is_refused_with_its_line(path: Path, entry: str, said: str) -> None:
    text = f"resources:\n  - name: mock/gpu\n    mock: {{}}\n  - {entry}\n"
    assert refused(path, text).startswith(f"plugwright.yaml:4: resources[1]{said}")


@pytest.mark.parametrize(("line", "said"), WRONG_MOCK.values(), ids=WRONG_MOCK)
def test_a_wrong_mock_is_refused_with_its_line(path: Path, line: str, said: str) -> None:
    assert re.match(
        rf"plugwright\.yaml:[45]: resources\[0\]\.mock{re.escape(said)}",
        refused(path, f"{GPU}    mock:\n      model: A\n      {line}\n"),
    )


def test_the_line_is_that_of_the_wrong_key(path: Path) -> None:
    text = GPU + "    mock:\n      model: A\n\n      # how many\n      count: many\n"
    assert refused(path, text).startswith("plugwright.yaml:7: resources[0].mock.count: ")


def test_a_key_that_is_given_twice_is_refused(path: Path) -> None:
    text = GPU + "    mock:\n      count: 1\n      numa: 1\n      count: 2\n"
    assert refused(path, text) == "plugwright.yaml:6: key 'count' is given twice"


def test_a_resource_that_is_given_twice_is_refused_with_both_lines(path: Path) -> None:
    text = GPU + "    mock: {}\n  - name: mock/gpu\n    mock: {}\n"
    assert refused(path, text) == "plugwright.yaml:4: resources[1].name: mock/gpu is already a resource, in line 2"


def test_a_key_that_is_no_text_is_refused_with_its_line(path: Path) -> None:
    assert refused(path, GPU + "    mock:\n      1: 2\n").startswith("plugwright.yaml:4: ")


@pytest.mark.parametrize("mock", ["{facts: /a/../b}", r'{facts: "/a\tb"}', r'{model: "a\0b"}'])
def test_a_mock_that_no_container_could_get_is_refused(path: Path, mock: str) -> None:
    assert refused(path, f"{GPU}    mock: {mock}\n").startswith("plugwright.yaml:3: resources[0].mock")


@pytest.mark.parametrize("size", ["'" + "9" * 5000 + "Gi'", "0x" + "f" * 5000], ids=["text", "number"])
def test_a_size_beyond_reason_is_refused(path: Path, size: str) -> None:
    assert refused(path, f"{GPU}    mock: {{memory: {size}}}\n").startswith("plugwright.yaml:3: resources[0].mock")


def test_a_file_that_is_not_text_is_refused(path: Path) -> None:
    path.write_bytes(b"resources: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"plugwright\.yaml: not UTF-8: .* at byte 11"):
        schema.load(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^cannot read {path}: No such file or directory$"):
        schema.load(path)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^cannot read {tmp_path}: Is a directory$"):
        schema.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [(0, 0), (5, 5), ("7", 7), ("16G", 16 * 10**9), ("40Gi", 40 * 2**30), ("3k", 3000), ("2Mi", 2**21), ("1Pi", 2**50)],
)
def test_sizes_are_read_as_kubernetes_writes_them(text: int | str, value: int) -> None:
    assert byte_size(text) == value


def test_kibibytes_have_a_capital_letter() -> None:
    assert byte_size("512Ki") == 512 * 1024


@UNHURRIED
@given(st.integers(0, 10**30), st.sampled_from(["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]))
def test_a_size_is_its_number_times_its_unit_and_fits_into_64_bits(number: int, unit: str) -> None:
    size = number * byte_size(f"1{unit}")
    if size < 2**63:
        assert byte_size(f"{number}{unit}") == size
    else:
        with pytest.raises(ConfigError, match="a size must be below 8Ei"):
            byte_size(f"{number}{unit}")


def test_a_plugin_whose_entry_is_unchanged_is_kept(path: Path) -> None:
    path.write_text("resources: [{name: a/b, mock: {count: 1}}, {name: a/c, mock: {count: 1}}]")
    before = schema.load(path)
    serving = {plugin.resource: plugin for plugin in before.plugins()}
    path.write_text("resources: [{name: a/c, mock: {count: 2}}, {name: a/b, mock: {count: 1}}, {name: a/d, mock: {}}]")
    after = {plugin.resource: plugin for plugin in schema.load(path).plugins(before, serving)}
    assert list(after) == ["a/c", "a/b", "a/d"]
    assert after["a/b"] is serving["a/b"]
    assert after["a/c"] is not serving["a/c"]
