"""What the kernel's part of the driver says of its GPUs, for those that NVIDIA's library cannot read."""

import re
from pathlib import Path

from plugwright.plugins.nvidia.gpus import Gpu

__all__ = ["gpus"]

_LINE = re.compile(r"^(?P<key>[^:\n]+):[ \t]*(?P<text>.*?)[ \t]*$", re.MULTILINE)


def gpus(proc: Path) -> list[Gpu]:
    """Those whose UUID it knows, in order of their addresses."""
    found = []
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        try:
            facts = dict(_LINE.findall(path.read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
        uuid, minor = facts.get("GPU UUID", ""), facts.get("Device Minor", "")
        if uuid.startswith("GPU-") and "?" not in uuid:
            found.append(
                Gpu(
                    uuid=uuid,
                    index=-1,
                    minor=int(minor) if minor.isdecimal() else None,
                    model=facts.get("Model", ""),
                    pci=path.parent.name.lower(),
                )
            )
    return found
