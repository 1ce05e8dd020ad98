"""Unix sockets as files: how many may wait in them, and whose directory they may be in."""

import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from plugwright import ConfigError
from plugwright.system import json_lines, sockets


def test_a_hundred_connections_wait_until_they_are_accepted(root: Path) -> None:
    """A kubelet's dial of a plugin that is busy must not fail."""
    with closing(sockets.listen(root / "plugin.sock")), ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            client.connect(str(root / "plugin.sock"))  # BlockingIOError where the queue is full


def test_a_directory_of_ours_is_taken_and_made(root: Path) -> None:
    json_lines.listen(root / "made" / "control.sock").close()
    assert (root / "made").stat().st_mode & 0o777 == 0o755


def test_a_directory_of_someone_else_is_refused(root: Path) -> None:
    someone = root.stat().st_uid + 1
    with pytest.raises(ConfigError, match=f"directory {root} must belong to root or to this user, got user"):
        json_lines.listen(root / "control.sock", owners={someone})
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of someone else")
def test_a_link_of_someone_else_is_refused(root: Path) -> None:
    (root / "ours").mkdir()
    (root / "theirs").symlink_to(root / "ours")
    os.lchown(root / "theirs", 65534, 65534)
    with pytest.raises(ConfigError, match=f"link {root}/theirs must belong to root or to this user, got user 65534"):
        json_lines.listen(root / "theirs" / "control.sock")
    assert list((root / "ours").iterdir()) == []


def test_a_link_of_ours_is_followed(root: Path) -> None:
    (root / "run").mkdir()
    (root / "var").symlink_to(root / "run")
    json_lines.listen(root / "var" / "control.sock").close()
    assert (root / "run" / "control.sock").is_socket()


def test_a_directory_that_everybody_may_write_to_must_be_like_tmp(root: Path) -> None:
    (root / "open").mkdir()
    (root / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="must not be world-writable, got mode 0777"):
        json_lines.listen(root / "open" / "control.sock")
    (root / "open").chmod(0o1777)
    json_lines.listen(root / "open" / "control.sock").close()
