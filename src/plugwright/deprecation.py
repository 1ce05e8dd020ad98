"""Former names of Python objects and configuration keys: they work for two minor versions, with a warning.

To rename something, add its former name to a table here. A test fails once a line is due for removal. The promises to
users are in docs/versions.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["ENTRY_KEYS", "PYTHON_NAMES", "Former", "current_keys", "current_name"]

_MINOR_VERSIONS = 2


class Former(NamedTuple):
    """The replacement of a former name, and the version that first warned about it, such as `0.3.0`."""

    current: str
    since: str

    @property
    def removed_in(self) -> str:
        major, minor = map(int, self.since.split(".")[:2])
        return f"{major}.{minor + _MINOR_VERSIONS}.0"

    def warning(self, name: str) -> str:
        return f"{name} is deprecated since {self.since} and is removed in {self.removed_in}: use {self.current}"


PYTHON_NAMES: Mapping[str, Former] = {}  # names of `plugwright`
ENTRY_KEYS: Mapping[str, Former] = {}  # keys of an entry of `resources`


def current_name(name: str, table: Mapping[str, Former] = PYTHON_NAMES) -> str:
    """The current name, with a DeprecationWarning to the caller's caller if `name` is a former one."""
    former = table.get(name)
    if former is None:
        return name
    import warnings  # loaded only for a former name

    warnings.warn(former.warning(f"plugwright.{name}"), DeprecationWarning, stacklevel=3)
    return former.current


def current_keys(
    entry: Mapping[str, object], table: Mapping[str, Former] = ENTRY_KEYS
) -> tuple[dict[str, object], Sequence[str]]:
    """The entry with current keys only, and a warning for each former key. A current key overrides its former one."""
    former = [key for key in entry if key in table]
    renamed = {table[key].current: entry[key] for key in former}
    kept = {key: value for key, value in entry.items() if key not in table}
    return {**renamed, **kept}, [table[key].warning(f"the key {key}") for key in former]
