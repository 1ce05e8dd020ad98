"""Selects the native parts for the machine of the image; without them an image with the nvidia extra is not built.

Called as: EXTRAS="cluster nvidia" python3 native.py /parts /native. Each directory of /parts contains the parts for one
machine, or none.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

__all__ = ["machine_of"]

_PARTS = ("cdi-hook/plugwright-cdi-hook", "vgpu/libcuda.so.1", "vgpu/libnvidia-ml.so.1")
_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF


def main() -> None:
    places, target = sorted(Path(sys.argv[1]).iterdir()), Path(sys.argv[2])
    machine = platform.machine()
    target.mkdir()
    for part in _PARTS:
        for found in [place / part for place in places if machine_of(place / part) == machine]:
            (target / part).parent.mkdir(exist_ok=True)
            shutil.copy(found, target / part)
        if not (target / part).exists() and "nvidia" in os.environ.get("EXTRAS", "").split():
            build = "'make cdi-hook vgpu'" + (" or 'make arm64'" if machine == "aarch64" else "")
            sys.exit(f"build/{part} for {machine} is missing: run {build} first")


def machine_of(path: Path) -> str | None:
    """The machine that an ELF file is compiled for."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        header = file.read(20)
    return _MACHINES.get(int.from_bytes(header[18:20], "little")) if header.startswith(b"\x7fELF") else None


if __name__ == "__main__":
    main()
