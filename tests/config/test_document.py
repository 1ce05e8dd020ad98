"""Any bytes in a file: YAML of the right types is read, everything else is refused in one line without a traceback."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as trying
from hypothesis import strategies as st
from tests.cli.processes import ended, python
from yaml import safe_dump

from plugwright.config import schema
from plugwright.errors import ConfigError

NOT_YAML = {
    "a tab": ("resources:\n\t- name: mock/gpu\n", ":2: not YAML: found character that cannot start any token"),
    "a bracket left open": ("resources: [\n", ":2: not YAML: did not find expected node content"),
    "a quote left open": ("resources: 'a\n", ":2: not YAML: found unexpected end of stream"),
    "two documents": ("resources: []\n---\nresources: []\n", ":2: not YAML: but found another document"),
    "a character that cannot be printed": ("resources: \x07\n", ": not YAML: unacceptable character"),
    "an alias of nothing": ("resources: *none\n", ":1: not YAML: found undefined alias"),
    "a list that holds itself": ("resources: &a [*a]\n", ":"),
    "a tag that runs code": ("resources: !!python/object/apply:os.getcwd []\n", ":1: not YAML: could not determine"),
    "a date that never was": ("resources: 2024-99-99\n", ": not YAML: month must be in 1..12"),
    "a number beyond reason": (f"resources: {'9' * 5000}\n", ": not YAML: Exceeds the limit"),
    "nesting beyond reason": ("- " * 5000, ":"),
}
ALMOST_YAML = {
    "a list for a key": "? [a]\n: b\n",
    "a mapping for a key": "{{a: b}: c}\n",
    "no truth value": "resources: !!bool maybe\n",
    "no whole number": "resources: !!int ''\n",
    "no number": "resources: !!float ''\n",
    "no time": "resources: !!timestamp never\n",
}
LEAKY = "documents.parse lets the TypeError, KeyError, IndexError and AttributeError of PyYAML's constructor through"

# a list of ten to the ninth: nine levels, each naming the one below it ten times
BOMB = "\n".join(["- &l0 [x]", *(f"- &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10))])

_WORDS = st.sampled_from(["resources", "name", "mock", "count", "memory", "links", "mock/gpu", "40Gi"])
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=4)
_VALUES = st.recursive(
    _SCALARS | _WORDS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_SIGNS = [
    "{",
    "}",
    "[",
    "]",
    "? ",
    ": ",
    "- ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "<<: ",
    "'",
    '"',
    "|",
    ">",
    "%YAML",
    "---",
    "\t",
]
_TAGS = ["!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!set ", "!!omap ", "!!pairs ", "!!binary ", "!own ", "! "]
_TEXTS = st.lists(_WORDS | st.sampled_from(_SIGNS + _TAGS) | st.text(max_size=3), max_size=20).map("".join)
UNHURRIED = trying(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plugwright.yaml"


def taken_or_refused(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        schema.load(path)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("text", "said"), NOT_YAML.values(), ids=NOT_YAML)
def test_text_that_is_not_yaml_is_refused(path: Path, text: str, said: str) -> None:
    assert taken_or_refused(path, text).startswith(f"plugwright.yaml{said}")


@pytest.mark.parametrize("text", ALMOST_YAML.values(), ids=ALMOST_YAML)
def test_text_that_is_almost_yaml_is_refused(path: Path, text: str) -> None:
    assert taken_or_refused(path, text).startswith("plugwright.yaml:")


@UNHURRIED
@given(content=_VALUES)
def test_any_content_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "plugwright.yaml"
    for document in (content, {"resources": content}, {"resources": [{"name": "mock/gpu", "mock": content}]}):
        said = taken_or_refused(path, safe_dump(document))
        assert said.startswith("plugwright.yaml:") or not said


@UNHURRIED
@given(text=st.text(st.characters(exclude_characters="[{?!")))
def test_any_plain_text_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    said = taken_or_refused(tmp_path_factory.getbasetemp() / "plugwright.yaml", text)
    assert said.startswith("plugwright.yaml:")


@UNHURRIED
@given(text=_TEXTS | st.text())
@example(text="? [a]\n: b\n")
@example(text="!!bool maybe")
def test_any_text_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    said = taken_or_refused(tmp_path_factory.getbasetemp() / "plugwright.yaml", text)
    assert said.startswith("plugwright.yaml:")


async def refused_by_a_process(path: Path, text: str) -> str:
    """What `plugwright run --check` says: one line and exit code 1, within three seconds of computing."""
    path.write_text(text)
    done = await ended(
        ["sh", "-c", 'ulimit -t 3; exec "$@"', "sh", *python("-m", "plugwright", "run", "--check", "-c", path)]
    )
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
    return done.err


async def test_a_process_says_what_is_wrong_in_one_line(path: Path) -> None:
    said = await refused_by_a_process(path, "resources:\n  - {name: mock/gpu, mock: {}, cuont: 1}\n")
    assert said == "plugwright: plugwright.yaml:2: resources[0]: unknown key 'cuont'\n"


async def test_a_bomb_of_aliases_is_refused(path: Path) -> None:
    refusal = await refused_by_a_process(path, BOMB)
    assert refusal == "plugwright: plugwright.yaml: its aliases expand to more than 100,000 values\n"


async def test_more_resources_than_a_daemon_can_serve_are_refused(path: Path) -> None:
    many = "".join(f"\n- {{name: mock/r{number}, mock: {{}}}}" for number in range(5_000))
    refusal = await refused_by_a_process(path, f"resources:{many}")
    assert refusal == "plugwright: plugwright.yaml:1: must have at most 1,000 resources, got 5,000\n"


async def test_nesting_that_would_fill_the_stack_is_refused(path: Path) -> None:
    for depth in (60, 100_000):
        refusal = await refused_by_a_process(path, "- " * depth)
        assert refusal == "plugwright: plugwright.yaml:1: nested more than 50 deep\n"
