"""A peer's YAML or JSON: every value knows its line, and nothing unknown is passed over."""

import pytest

from plugwright.errors import ConfigError
from plugwright.importers import source
from plugwright.importers.source import Note, Value

KEYS = ("name", "isRdma")


def member(text: str, key: str) -> Value:
    return dict(source.parse("file", text).members())[key]


def test_keys_are_found_however_their_case_is_written() -> None:
    notes: list[Note] = []
    found = source.parse("file", "NAME: a\nisrdma: true\n").fields(KEYS, notes)
    assert (found["name"].text(), found["isRdma"].switch(), notes) == ("a", True, [])


def test_an_unknown_key_is_noted_with_its_line() -> None:
    notes: list[Note] = []
    source.parse("file", "name: a\nnmae: b\n").fields(KEYS, notes)
    assert notes == [Note("file", 2, "unknown key 'nmae', left out")]


def test_one_key_in_two_cases_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^file:2: key 'name' stands here a second time, as 'Name'$"):
        source.parse("file", "name: a\nName: b\n").fields(KEYS, [])


def test_null_is_as_good_as_nothing() -> None:
    notes: list[Note] = []
    assert source.parse("file", "name: null\nisRdma:\n").fields(KEYS, notes) == {}
    assert member("list:\n", "list").items() == []


def test_json_with_tabs_is_read() -> None:
    root = source.parse("file", '{\n\t"name":\t"a",\n\t"list": [1]\n}\n')
    assert {key: value.line for key, value in root.members()} == {"name": 2, "list": 3}


@pytest.mark.parametrize(
    ("read", "text", "what"),
    [
        (Value.text, "7", "a text is needed here, not '7'"),
        (Value.text, "[]", "a text is needed here, not a list"),
        (Value.whole, "'7'", "a whole number is needed here, not '7'"),
        (Value.whole, "-1", "a whole number is needed here, not '-1'"),
        (Value.whole, "0x10", "a whole number is needed here, not '0x10'"),
        (Value.whole, "1.5", "a whole number is needed here, not '1.5'"),
        (Value.switch, "'true'", "true or false is needed here, not 'true'"),
        (Value.switch, "yes", "true or false is needed here, not 'yes'"),
        (Value.items, "a", "a list is needed here, not 'a'"),
        (Value.texts, "[a, {}]", "a text is needed here, not a mapping"),
        (lambda value: list(value.members()), "[]", "a mapping is needed here, not a list"),
    ],
)
def test_a_wrong_type_is_refused_with_its_line(read, text: str, what: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        read(member(f"# first\nkey: {text}\n", "key"))
    assert str(caught.value).startswith("file:2: key")
    assert str(caught.value).endswith(what)


def test_what_is_merged_is_written_out() -> None:
    root = source.parse("file", "a: &a {name: x}\nb: {<<: *a, isRdma: true}\n")
    assert sorted(dict(root.members())["b"].fields(KEYS, [])) == ["isRdma", "name"]


def test_a_file_in_a_block_keeps_the_lines_of_the_outer_one() -> None:
    inner = member("# first\nkey: |\n  name: a\n  nmae: b\n", "key").inner()
    assert {key: value.line for key, value in inner.members()} == {"name": 3, "nmae": 4}


def test_a_file_in_quotes_counts_from_its_own_first_line() -> None:
    inner = member('# first\nkey: "name: a\\nnmae: b\\n"\n', "key").inner()
    assert {key: value.line for key, value in inner.members()} == {"name": 1, "nmae": 2}
    assert str(inner.error("oh")) == "file:2: inside key:1: oh"


def test_a_file_in_one_quoted_line_is_in_that_line() -> None:
    inner = member("# first\nkey: '{\"name\": 7}'\n", "key").inner()
    assert [value.line for _, value in inner.members()] == [2]


def test_each_of_several_documents_keeps_its_lines() -> None:
    first, second = source.parse_all("file", "# head\n---\na: 1\n---\n# more\nb: 2\n---\n")
    assert [(key, value.line) for each in (first, second) for key, value in each.members()] == [("a", 3), ("b", 6)]


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# only a comment\n"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert [list(each.members()) for each in source.parse_all("file", text)] == [[]]


def test_what_is_no_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^file:3: not YAML: "):
        source.parse_all("file", "a: 1\n---\nb: ]\n")
