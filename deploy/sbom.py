"""Writes the SBOMs of a release as CycloneDX, from uv.lock: of the Python packages, and of what each image installs.

    .venv/bin/python deploy/sbom.py dist

The SBOMs of images list their Python packages with their hashes. The packages of the base image are listed by the SBOM
that the image builder attaches to a released image.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugwright import __version__

__all__ = ["main"]

_EXPORT = (
    *("export", "--quiet", "--frozen", "--no-dev", "--no-emit-project", "--preview-features", "sbom-export"),
    *("--format", "cyclonedx1.5"),
)
_EXTRAS: Mapping[str, Sequence[str]] = {  # by file: the extras, as in the release workflow
    "plugwright": ("--all-extras",),
    "image-plugwright": (),
    "image-plugwright-tools": ("--extra", "cluster", "--extra", "metrics", "--extra", "nvidia"),
}


def main(directory: Path) -> None:
    for name, extras in _EXTRAS.items():
        document = _exported(extras)
        # The same bytes for the same lock file.
        del document["serialNumber"], document["metadata"]["timestamp"]
        kind = "container" if name.startswith("image-") else "library"
        component = {**document["metadata"]["component"], "type": kind, "version": __version__}
        document["metadata"]["component"] = {**component, "name": name.removeprefix("image-")}
        (directory / f"{name}-{__version__}.cdx.json").write_text(json.dumps(document, indent=2) + "\n")


def _exported(extras: Sequence[str]) -> dict[str, Any]:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([str(uv), *_EXPORT, *extras], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


if __name__ == "__main__":
    main(Path(sys.argv[1]))
