"""`plugwright import`: prints a configuration for `plugwright run`, and notes."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.errors import ConfigError

DOCS = Path(__file__).parent.parent.parent / "docs" / "import.md"
GOLDEN = Path(__file__).parents[1] / "importers" / "golden"
INPUTS = sorted(path for path in GOLDEN.iterdir() if ".out." not in path.name)
FUSE = "domain: lab.io\ndevices: [{name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}]\n"
UNHURRIED = trying(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)], input=text)


def printed(*arguments: object, text: str | None = None) -> str:
    result = run(*arguments, text=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_output_equals_the_golden_file(path: Path) -> None:
    assert printed(path) == path.with_name(f"{path.stem}.out.yaml").read_text()


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_output_is_accepted_by_run(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "plugwright.yaml"
    made.write_text(printed(path))
    result = CliRunner().invoke(cli, ["run", "--check", "-c", str(made)])
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_every_note_is_a_comment_and_a_line_on_standard_error(path: Path) -> None:
    result = run(path)
    comments = [line.strip().removeprefix("# ") for line in result.stdout.splitlines() if line.strip().startswith("#")]
    assert comments[1:] == [line.removeprefix("plugwright: ") for line in result.stderr.splitlines()]
    assert len(comments) > 1
    assert all(comment.startswith(f"{path.name}:") for comment in comments[1:])


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_json_holds_the_same(path: Path) -> None:
    document = json.loads(printed(path, "--output", "json"))
    assert document["resources"] == yaml.safe_load(printed(path))["resources"]
    assert len(document["notes"]) == len(run(path).stderr.splitlines())
    assert document["from"] in path.name
    assert all(sorted(note) == ["file", "line", "text"] for note in document["notes"])


def test_standard_input_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(FUSE)
    assert printed("-", text=FUSE) == printed(tmp_path / "file")


def test_flags_are_enough() -> None:
    device = '{"name": "fuse", "groups": [{"paths": [{"path": "/dev/fuse"}]}]}'
    assert printed("--from", "gdp", "--", "--domain=lab.io", "--device", device) == printed("-", text=FUSE)


def test_example_of_the_docs_is_true() -> None:
    text = DOCS.read_text()
    [command] = [line.strip() for line in text.splitlines() if line.startswith("    plugwright import --from gdp -- ")]
    shown = text.partition("prints\n\n```yaml\n")[2].partition("```")[0]
    assert printed(*shlex.split(command)[2:]) == shown


def test_flags_go_with_a_file() -> None:
    assert "name: x.y/fuse" in printed("-", "--", "--domain=x.y", text=FUSE)


def test_one_file_of_several_is_chosen() -> None:
    data = {"a.yaml": FUSE, "b.json": '{"resourceList": []}'}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "data": data})
    assert "name: lab.io/fuse" in printed("-", "--key", "a.yaml", text=text)
    assert "choose one with --key: a.yaml, b.json" in str(run("-", text=text).exception)


def test_names_are_looked_up_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "snd").mkdir()
    (tmp_path / "snd" / "timer").touch()
    made = yaml.safe_load(printed("-", "--dev", tmp_path, text="- {devicematch: '^snd.*', nummaxdevices: 1}"))
    assert [resource["name"] for resource in made["resources"]] == ["smarter-devices/snd", "smarter-devices/snd_timer"]


def test_a_dollar_or_a_colon_does_not_change_the_meaning() -> None:
    text = FUSE.replace("path: /dev/fuse", "path: '/dev/a: #b', mountPath: '/dev/{x}'")
    made = yaml.safe_load(printed("-", text=text))
    assert made["resources"][0]["paths"] == [{"path": "/dev/a: #b", "to": "/dev/{{x}}", "type": "device"}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: b\n", "cannot tell which plugin this file belongs to; use --from"),
        ("", "cannot tell which plugin this file belongs to; use --from"),
        ("just a text\n", "cannot tell which plugin this file belongs to; use --from"),
    ],
)
def test_unrecognised_file_is_a_usage_error(text: str, problem: str) -> None:
    result = run("-", text=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--from", "nobody", "-"], ["--domain", "No", "-"], ["--dev", "/no/such", "-"]]
)
def test_usage_error_is_exit_code_2(arguments: list[str]) -> None:
    assert run(*arguments, text=FUSE).exit_code == 2


def test_missing_file_is_named(tmp_path: Path) -> None:
    error = run(tmp_path / "none").exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith("cannot read ")


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in str(run(tmp_path / "file").exception)


PATHS = st.text(alphabet="abc/*?[]^-\\{}$#:'\"é .", min_size=1, max_size=12).map(lambda text: f"/dev/{text}")
PATH = st.fixed_dictionaries(
    {"path": PATHS},
    optional={
        "mountPath": PATHS | st.just(""),
        "type": st.sampled_from(["Device", "Mount", "mount"]),
        "permissions": st.sampled_from(["r", "mrw", "rw", ""]),
        "readOnly": st.booleans(),
        "limit": st.integers(0, 9),
        "optional": st.booleans(),
        "more": st.none() | st.integers(),
    },
)
HEX = st.text(alphabet="0123456789abcdefABCDEF", min_size=1, max_size=4) | st.integers(0, 9999)
USB = st.fixed_dictionaries({"vendor": HEX, "product": HEX}, optional={"serial": st.text(max_size=6)})
COUNT = st.integers(0, 1000)
GROUP = st.fixed_dictionaries({"paths": st.lists(PATH, max_size=3)}, optional={"count": COUNT}) | st.fixed_dictionaries(
    {"usb": st.lists(USB, max_size=2)}, optional={"count": COUNT}
)
NAMES = st.from_regex(r"[a-z0-9][-a-z0-9]{0,8}[a-z0-9]", fullmatch=True)
DEVICES = st.lists(
    st.fixed_dictionaries({"name": NAMES, "groups": st.lists(GROUP, max_size=3)}),
    min_size=1,
    max_size=3,
    unique_by=lambda device: str(device["name"]),
)
IDS = st.lists(st.sampled_from(["8086", "15b3", "0x15B3"]), max_size=2)
WORDS = st.lists(st.sampled_from(["ens1f0", "a*", "b[c", "0000:3b:00.0"]), max_size=2)
SELECTOR = st.fixed_dictionaries(
    {},
    optional={
        "vendors": IDS,
        "devices": IDS,
        "drivers": WORDS,
        "pciAddresses": WORDS,
        "pfNames": st.lists(st.sampled_from(["ens1f0", "ens1f0#0-3", "x#", "y#1,2"]), max_size=3),
        "isRdma": st.booleans(),
        "linkTypes": st.lists(st.sampled_from(["ether", "infiniband"]), max_size=2),
        "ddpProfiles": WORDS,
    },
)
POOL = st.fixed_dictionaries(
    {
        "resourceName": st.sampled_from(["a", "b_c", "D"]),
        "selectors": SELECTOR | st.lists(SELECTOR, max_size=2),
    },
    optional={"excludeTopology": st.booleans(), "additionalInfo": st.just({"*": {"k": "v"}})},
)
FILES = {
    "gdp": DEVICES.map(lambda devices: {"domain": "lab.io", "devices": devices}),
    "sriov": st.lists(POOL, min_size=1, max_size=2).map(lambda pools: {"resourceList": pools}),
    "rdma": st.fixed_dictionaries(
        {
            "configList": st.lists(
                st.fixed_dictionaries(
                    {"resourceName": st.sampled_from(["a", "b"]), "rdmaHcaMax": COUNT},
                    optional={
                        "devices": WORDS,
                        "selectors": st.fixed_dictionaries({}, optional={"ifNames": WORDS, "vendors": IDS}),
                    },
                ),
                min_size=1,
                max_size=2,
            )
        }
    ),
    "smarter": st.lists(
        st.fixed_dictionaries(
            {"devicematch": st.text(alphabet="ab01[](){}|?*+^$-/.", min_size=1, max_size=8), "nummaxdevices": COUNT}
        ),
        max_size=3,
    ),
}


@pytest.mark.parametrize("format_name", FILES)
@UNHURRIED
@given(data=st.data())
def test_import_is_refused_in_one_line_or_accepted_by_run(format_name: str, data: st.DataObject) -> None:
    result = run("--from", format_name, "-", text=yaml.safe_dump(data.draw(FILES[format_name])))
    if result.exit_code == 0:
        assert schema.read("made", result.stdout).file.resources is not None
    else:
        assert isinstance(result.exception, ConfigError)
        assert result.stdout == ""
        assert "the imported configuration" not in str(result.exception)


KEYS = st.sampled_from(
    [
        "apiVersion", "kind", "data", "items", "spec", "template", "containers", "args", "command", "env", "name",
        "value", "devices", "groups", "paths", "path", "usb", "vendor", "product", "count", "resourceList",
        "resourceName", "selectors", "vendors", "pfNames", "configList", "rdmaHcaMax", "devicematch", "nummaxdevices",
    ]
)  # fmt: skip
SCALARS = st.sampled_from(
    ["", "v1", "ConfigMap", "DaemonSet", "List", "--device", "-x", "a1", "/dev/a", "{", "- a", "^a$", "8086", "é\0"]
) | (st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats(allow_nan=False))
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5))


@pytest.mark.parametrize("format_name", FILES)
@UNHURRIED
@given(content=ANYTHING)
def test_arbitrary_document_never_crashes(format_name: str, content: object) -> None:
    result = run("--from", format_name, "-", text=yaml.safe_dump(content))
    assert result.exit_code == 0 or isinstance(result.exception, ConfigError), result.exception


@given(text=st.text())
def test_arbitrary_text_never_crashes(text: str) -> None:
    result = run("-", text=text.replace("\r", ""))
    assert result.exit_code in (0, 2) or isinstance(result.exception, ConfigError), result.exception
