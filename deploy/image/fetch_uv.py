"""Fetches uv as uv.lock names it, checked by its hash; the base image needs no pip for that.

Called as: python3 fetch_uv.py uv.lock /usr/local/bin/uv
"""

import hashlib
import io
import platform
import shutil
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

__all__ = ["wheel_of"]


def main() -> None:
    lock, target = Path(sys.argv[1]), Path(sys.argv[2])
    if shutil.which("uv"):  # a builder may bring its own, where PyPI is not to be had
        return
    url, digest = wheel_of(tomllib.loads(lock.read_text()), platform.machine())
    with urllib.request.urlopen(url, timeout=300) as answer:  # noqa: S310  # the lock has https alone
        wheel = answer.read()
    if hashlib.sha256(wheel).hexdigest() != digest:
        sys.exit(f"{url} is not what uv.lock names")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        program = next(name for name in archive.namelist() if name.endswith("/scripts/uv"))
        target.write_bytes(archive.read(program))
    target.chmod(0o755)


def wheel_of(lock: dict[str, list[dict[str, object]]], machine: str) -> tuple[str, str]:
    """The wheel that runs on any Linux of this architecture, and its SHA-256."""
    uv = next(package for package in lock["package"] if package["name"] == "uv")
    wheels = uv["wheels"]
    assert isinstance(wheels, list)
    for libc in ("musllinux", "manylinux"):  # the one for musl is static
        for wheel in wheels:
            if libc in wheel["url"] and wheel["url"].endswith(f"{machine}.whl"):
                return wheel["url"], wheel["hash"].removeprefix("sha256:")
    sys.exit(f"uv.lock has no uv for {machine}")


if __name__ == "__main__":
    main()
