"""Objects on disk: no answered write is lost, however the process ends."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from plugwright.apiserver.database import Database
from plugwright.apiserver.store import ObjectKey, Store
from plugwright.errors import ClusterError

WRITER = """
import sys
from pathlib import Path
from plugwright.apiserver.database import Database
from plugwright.apiserver.store import ObjectKey, Store
store = Store(Database(Path(sys.argv[1])))
for number in range(store.revision, 10**9):
    name = f"m-{number}"
    store.create(ObjectKey("configmaps", "default", name), {"metadata": {"name": name}, "data": {"x": "y" * 2000}})
    if number % 3 == 0:
        store.delete(ObjectKey("configmaps", "default", name))
    print(store.revision, name, number % 3 != 0, flush=True)  # the answer
"""


def test_objects_and_revision_are_loaded_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "state" / "cluster.db")
    store = Store(database)
    for name in "abc":
        store.create(ObjectKey("pods", "default", name), {"metadata": {"name": name}})
    store.delete(ObjectKey("pods", "default", "b"))
    database.close()
    database = Database(tmp_path / "state" / "cluster.db")
    again = Store(database)
    assert ([*again.objects("pods")], again.revision) == ([*store.objects("pods")], store.revision)
    database.close()


def test_the_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    database = Database(tmp_path / "state" / "cluster.db")
    Store(database).create(ObjectKey("pods", "default", "a"), {"metadata": {"name": "a"}})
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    database.close()


def test_a_killed_process_loses_no_answered_write(tmp_path: Path) -> None:
    """Killed five times while it writes; the next process continues."""
    answered: dict[str, bool] = {}
    last = 1
    for round_ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "c.db"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20 + 7 * round_):
            revision, name, there = process.stdout.readline().split()
            answered[name], last = there == "True", int(revision)
        os.kill(process.pid, signal.SIGKILL)
        for line in process.stdout:  # answered before the end, and not read by us yet
            if line.endswith("\n"):
                revision, name, there = line.split()
                answered[name], last = there == "True", int(revision)
        process.wait()
        process.stdout.close()
        database = Database(tmp_path / "c.db")
        store = Store(database)
        assert {name: store.get(ObjectKey("configmaps", "default", name)) is not None for name in answered} == answered
        assert store.revision >= last
        database.close()
    assert len(answered) >= 100


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\x00" * 4096])
def test_a_file_that_is_not_a_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(content)
    with pytest.raises(ClusterError, match=r"cannot use .*c\.db"):
        Database(path)
    assert path.read_bytes() == content


def test_a_database_of_another_layout_is_refused(tmp_path: Path) -> None:
    Database(tmp_path / "c.db").close()
    connection = sqlite3.connect(tmp_path / "c.db")
    connection.execute("UPDATE facts SET value = 99 WHERE name = 'layout'")
    connection.commit()
    connection.close()
    with pytest.raises(ClusterError, match="another version"):
        Database(tmp_path / "c.db")


def test_a_database_in_use_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "c.db")
    with pytest.raises(ClusterError, match="locked"):
        Database(tmp_path / "c.db")
    database.close()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot use"):
        Database(tmp_path / "file" / "c.db")


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "c.db")
    store = Store(database)
    store.create(ObjectKey("pods", "default", "a"), {"metadata": {"name": "a"}})
    database.close()
    with pytest.raises(ClusterError, match="cannot write"):
        store.create(ObjectKey("pods", "default", "b"), {"metadata": {"name": "b"}})
    assert (store.get(ObjectKey("pods", "default", "b")), store.revision) == (None, 2)


@pytest.mark.parametrize("damage", [b"x" * 8192, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_corrupt_file_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "objects.db").write_bytes(damage)
    with pytest.raises(ClusterError, match=r"objects\.db"):
        Database(tmp_path / "objects.db").load()


def test_an_object_that_is_no_json_is_an_error_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    Database(path).close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO objects VALUES ('pods', 'default', 'a', 'no json')")
    connection.commit()
    connection.close()
    database = Database(path)
    with pytest.raises(ClusterError, match=r"objects\.db"):
        database.load()
    database.close()
