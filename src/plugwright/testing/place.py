"""Where an emulated kubelet of a test has its files.

A socket's path may have 107 bytes, and pytest's directories are named after the test: the files stay in the directory
of the test, and where that is too deep, the sockets are reached through a short link to it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from plugwright.protocol.paths import SOCKET_PATH_LIMIT, KubeletPaths

__all__ = ["kubelet_root"]

_LONGEST_NAME = 56  # of a socket that the SDK makes; a plugin of one's own may take as much
_SHORT = "/tmp"


@contextmanager
def kubelet_root(directory: Path) -> Iterator[Path]:
    """The root for a kubelet: `kubelet` in `directory`, or a link to it for as long as it is used."""
    root = Path(directory).absolute() / "kubelet"
    if _has_room(root):
        yield root
        return
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="pw-", dir=_SHORT if os.access(_SHORT, os.W_OK) else None) as short:
        link = Path(short, root.name)
        link.symlink_to(root, target_is_directory=True)
        yield link


def _has_room(root: Path) -> bool:
    directory = KubeletPaths.from_environment({}, root).device_plugins
    return len(os.fsencode(directory)) + 1 + _LONGEST_NAME <= SOCKET_PATH_LIMIT
