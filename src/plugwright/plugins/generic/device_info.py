"""The device-info files of the network plumbing group: what Multus tells a CNI plugin of a PCI function."""

import json
import logging
import os
from pathlib import Path

from plugwright.plugins.generic.units import Unit
from plugwright.sdk import sysfs

__all__ = ["write"]

logger = logging.getLogger(__name__)

_VERSION = "1.1.0"


def write(directory: Path, resource: str, device_id: str, unit: Unit) -> None:
    """A network without the file still works; so failing to write it is said, and not the pod's problem."""
    path = directory / f"{resource.replace('/', '-')}-{device_id}-device.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps({"type": "pci", "version": _VERSION, "pci": _facts(unit)}, sort_keys=True))
    except OSError as error:
        logger.warning("no device-info file for Multus", extra={"file": str(path), "error": str(error)})


def _facts(unit: Unit) -> dict[str, str]:
    facts = {"pci-address": unit.facts["pci"].partition(",")[0], "rdma-device": unit.facts.get("rdma", "")}
    if unit.directory is not None:
        facts["pf-pci-address"] = sysfs.link_name(unit.directory, "physfn")
    return {name: value for name, value in facts.items() if value}


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.chmod(0o444)
    new.replace(path)
