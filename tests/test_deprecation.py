"""Former names work with a warning for two minor versions, and no longer; docs/versions.md promises it."""

import warnings
from pathlib import Path

import pytest

import plugwright
from plugwright import __version__
from plugwright.config import schema
from plugwright.deprecation import ENTRY_KEYS, PYTHON_NAMES, Former, current_keys, current_name

ROOT = Path(__file__).parent.parent
DRIVE = Former("Device", "0.3.0")


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:3]))


def test_a_former_name_works_for_two_minor_versions_with_a_warning() -> None:
    assert DRIVE.removed_in == "0.5.0"
    text = "plugwright.Drive is deprecated since 0.3.0 and is removed in 0.5.0: use Device"
    with pytest.warns(DeprecationWarning, match=f"^{text}$"):
        assert current_name("Drive", {"Drive": DRIVE}) == "Device"


def test_a_name_in_use_has_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current_name("Device", {"Drive": DRIVE}) == "Device"
        assert plugwright.Device.__name__ == "Device"


def test_a_former_key_is_read_as_the_current_one_which_wins() -> None:
    table = {"shared": Former("count", "0.3.0")}
    warning = "the key shared is deprecated since 0.3.0 and is removed in 0.5.0: use count"
    assert current_keys({"name": "a/b", "shared": 3}, table) == ({"name": "a/b", "count": 3}, [warning])
    assert current_keys({"shared": 3, "count": 4}, table) == ({"count": 4}, [warning])
    assert current_keys({"count": 4}, table) == ({"count": 4}, [])


def test_a_file_with_a_former_key_is_valid_and_the_log_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    text = "resources:\n  - name: a/b\n    paths: [/dev/null]\n    shared: 3\n"
    table = {"shared": Former("count", "0.3.0")}
    config = schema.read("plugwright.yaml", text, former=table)
    [entry] = config.file.resources
    assert entry.options.count == 3
    [record] = caplog.records
    assert record.message == "deprecated configuration key"
    assert vars(record)["place"] == "plugwright.yaml:2"


@pytest.mark.parametrize("table", [PYTHON_NAMES, ENTRY_KEYS])
def test_no_former_name_is_kept_beyond_its_time(table: dict[str, Former]) -> None:
    assert all(number(former.removed_in) > number(__version__) for former in table.values())


def test_the_page_names_the_mechanism() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    assert "src/plugwright/deprecation.py" in page
    assert "written by a later version of plugwright" in page
