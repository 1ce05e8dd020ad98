"""Properties try the same examples in each run of ring 1, whatever tests ran before in the same process."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

LEAST = 10**12


def examples() -> list[int]:
    tried = []

    @given(st.integers(LEAST, 2 * LEAST))
    def collect(number: int) -> None:
        tried.append(number)

    collect()
    return tried


def test_examples_do_not_depend_on_the_loaded_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examples()
    (tmp_path / "many_constants.py").write_text(f"CONSTANTS = {[LEAST + 7 * number for number in range(500)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("many_constants")
    assert examples() == before
    del sys.modules["many_constants"]
