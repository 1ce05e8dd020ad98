"""The boot id of the machine, to recognise state stored in an earlier boot."""

from pathlib import Path

__all__ = ["BOOT_ID", "boot_id"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """Another id after every boot; empty if it cannot be read, which must not count as the same boot."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
