"""The state of each release in its own directory below the state directory.

Daemons of earlier versions kept their files in the state directory itself. Two releases on one node shared it, and
could start with each other's last valid configuration. The first start of a release migrates these files. Cordons are
the node's and do not move, unless the node's directory differs: then they are merged into the cordons there.
"""

import fcntl
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from plugwright.errors import CallUnfinished, ConfigError, PlugwrightError
from plugwright.sdk.cordons import CORDONS_FILE, Cordons
from plugwright.sdk.settings import Settings
from plugwright.system import files
from plugwright.system.blocking import call_within
from plugwright.text import clean

__all__ = ["with_own_state"]

logger = logging.getLogger(__name__)

_RELEASES = "releases"
_LAST_GOOD = "last-good-config.json"  # of the release that read its file last
_MERGED = ".merged"
_LIMIT = 5.0  # seconds; a disk that hangs must not keep devices out of service


def with_own_state(settings: Settings) -> Settings:
    """`settings` with the directories of this release and of this node; migrates the files of earlier versions."""
    shared, node = settings.state_dir, settings.node_directory
    if shared is None or node is None:
        return settings
    try:
        own = call_within("look for earlier state", _LIMIT, partial(_prepared, shared, node, settings.release))
    except CallUnfinished as error:
        own = _directory(shared, settings.release)
        facts = {"path": str(shared), "error": clean(error)}
        logger.error("state of an earlier version not looked for: the disk hangs", extra=facts)
    return replace(settings, state_dir=own, node_dir=node)


def _directory(shared: Path, release: str) -> Path:
    return shared / _RELEASES / release.replace("/", "_")  # no name in a release contains this character


def _prepared(shared: Path, node: Path, release: str) -> Path:
    own = _directory(shared, release)
    try:
        _merge_cordons(shared, node)
        if own.is_dir():
            return own
        if _is_in_use(shared):
            # A daemon of an earlier version still uses these files: during a rolling update both run for a moment.
            logger.info("state stays in place until the earlier daemon has ended", extra={"path": str(shared)})
            return shared
        copied = _bring_along(shared, own)
        if copied:
            logger.info("state of an earlier version migrated", extra={"files": copied, "to": str(own)})
    except (OSError, ValueError, PlugwrightError) as error:
        logger.warning("state of an earlier version not migrated", extra={"error": clean(error)})
    return own


def _bring_along(shared: Path, own: Path) -> list[str]:
    """Copies files, which other releases can need; only the last valid configuration has a single owner."""
    own.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    copied = []
    with files.locked(own.parent):
        if own.is_dir():  # made by another daemon of this release
            return []
        making = own.with_name(f".{own.name}")
        making.mkdir(mode=0o755, exist_ok=True)  # continues one left by a killed start
        for path in sorted(shared.iterdir()):
            if path.is_file() and not path.is_symlink() and not path.name.startswith((".", CORDONS_FILE)):
                files.write_atomically(making / path.name, files.read(path), mode=0o600)
                copied.append(path.name)
        making.rename(own)
        files.remove(shared / _LAST_GOOD)
    return copied


def _is_in_use(shared: Path) -> bool:
    """Whether a process holds a lock of an earlier version."""
    for path in shared.glob("split-*.lock"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _merge_cordons(shared: Path, node: Path) -> None:
    """Merges once, so a cordon removed later does not return from the earlier file."""
    earlier = shared / CORDONS_FILE
    if not earlier.exists() or (node.is_dir() and shared.samefile(node)):
        return
    cordons = Cordons(earlier)
    cordons.load()
    if cordons.unreadable:
        raise ConfigError(cordons.unreadable)
    Cordons(node / CORDONS_FILE).merge(cordons.all)
    earlier.rename(earlier.with_name(f"{CORDONS_FILE}{_MERGED}"))
    logger.info("cordons merged into those of the node", extra={"from": str(earlier), "to": str(node)})
