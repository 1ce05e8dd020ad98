"""Values of another plugin's YAML or JSON: every value has its line, and unknown keys are noted."""

import pytest

from plugwright.errors import ConfigError
from plugwright.importers import values
from plugwright.importers.values import ConfigValue, ImportNote

KEYS = ("name", "isRdma")


def member(text: str, key: str) -> ConfigValue:
    return dict(values.parse("file", text).members())[key]


def test_keys_are_read_in_any_case() -> None:
    notes: list[ImportNote] = []
    fields = values.parse("file", "NAME: a\nisrdma: true\n").fields(KEYS, notes)
    assert (fields["name"].string(), fields["isRdma"].boolean(), notes) == ("a", True, [])


def test_unknown_key_is_noted_with_its_line() -> None:
    notes: list[ImportNote] = []
    values.parse("file", "name: a\nnmae: b\n").fields(KEYS, notes)
    assert notes == [ImportNote("file", 2, "unknown key 'nmae', left out")]


def test_key_repeated_in_another_case_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^file:2: key 'name' must not be repeated, got 'Name' too$"):
        values.parse("file", "name: a\nName: b\n").fields(KEYS, [])


def test_null_counts_as_absent() -> None:
    notes: list[ImportNote] = []
    assert values.parse("file", "name: null\nisRdma:\n").fields(KEYS, notes) == {}
    assert member("list:\n", "list").items() == []


def test_json_with_tabs_is_read() -> None:
    root = values.parse("file", '{\n\t"name":\t"a",\n\t"list": [1]\n}\n')
    assert {key: value.line for key, value in root.members()} == {"name": 2, "list": 3}


@pytest.mark.parametrize(
    ("read", "text", "problem"),
    [
        (ConfigValue.string, "7", "must be a string, got '7'"),
        (ConfigValue.string, "[]", "must be a string, got a list"),
        (ConfigValue.integer, "'7'", "must be an integer, got '7'"),
        (ConfigValue.integer, "-1", "must be an integer, got '-1'"),
        (ConfigValue.integer, "0x10", "must be an integer, got '0x10'"),
        (ConfigValue.integer, "1.5", "must be an integer, got '1.5'"),
        (ConfigValue.boolean, "'true'", "must be true or false, got 'true'"),
        (ConfigValue.boolean, "yes", "must be true or false, got 'yes'"),
        (ConfigValue.items, "a", "must be a list, got 'a'"),
        (lambda value: [item.string() for item in value.items()], "[a, {}]", "must be a string, got a mapping"),
        (lambda value: list(value.members()), "[]", "must be a mapping, got a list"),
    ],
)
def test_wrong_type_is_refused_with_its_line(read, text: str, problem: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        read(member(f"# first\nkey: {text}\n", "key"))
    assert str(caught.value).startswith("file:2: key")
    assert str(caught.value).endswith(problem)


def test_merge_keys_are_resolved() -> None:
    root = values.parse("file", "a: &a {name: x}\nb: {<<: *a, isRdma: true}\n")
    assert sorted(dict(root.members())["b"].fields(KEYS, [])) == ["isRdma", "name"]


def test_embedded_block_keeps_the_lines_of_the_outer_file() -> None:
    embedded = member("# first\nkey: |\n  name: a\n  nmae: b\n", "key").embedded()
    assert {key: value.line for key, value in embedded.members()} == {"name": 3, "nmae": 4}


def test_embedded_quoted_lines_count_from_one() -> None:
    embedded = member('# first\nkey: "name: a\\nnmae: b\\n"\n', "key").embedded()
    assert {key: value.line for key, value in embedded.members()} == {"name": 1, "nmae": 2}
    assert str(embedded.error("oh")) == "file:2: inside key:1: oh"


def test_embedded_quoted_line_keeps_its_line() -> None:
    embedded = member("# first\nkey: '{\"name\": 7}'\n", "key").embedded()
    assert [value.line for _, value in embedded.members()] == [2]


def test_documents_of_one_file_keep_their_lines() -> None:
    first, second = values.parse_all("file", "# head\n---\na: 1\n---\n# more\nb: 2\n---\n")
    assert [(key, value.line) for document in (first, second) for key, value in document.members()] == [
        ("a", 3),
        ("b", 6),
    ]


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# only a comment\n"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert [list(document.members()) for document in values.parse_all("file", text)] == [[]]


def test_invalid_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^file:3: not YAML: "):
        values.parse_all("file", "a: 1\n---\nb: ]\n")


def flags(*words: str) -> list[tuple[str, str]]:
    parsed = values.parse_flags((values.flag_value(1, word) for word in words), lambda name: name != "verbose")
    return [(name, value.raw) for name, value in parsed]


def test_flags_are_read_as_go_reads_them() -> None:
    assert flags("program", "--a", "1", "-b=2", "--verbose", "--c=", "word") == [
        ("a", "1"), ("b", "2"), ("verbose", "true"), ("c", "")
    ]  # fmt: skip


def test_flag_without_its_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^flags:1: --a must be followed by a value$"):
        flags("--a")
