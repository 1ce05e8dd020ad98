"""Container images of one layer, as archives that `ctr images import` takes: there is no registry to pull from."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.kubernetes.machine import ARCHITECTURE

__all__ = ["BUSYBOX", "PAUSE", "write_busybox", "write_image"]

BUSYBOX = "plugwright.test/busybox:1"
PAUSE = "plugwright.test/pause:1"
_TOOLS = ("cat", "echo", "env", "false", "id", "ls", "mount", "sh", "sleep", "stat", "test", "touch", "true")


def write_busybox(archive: Path) -> None:
    """Both images that every cluster needs: what tests run, and what keeps a pod's namespaces."""
    _write(archive, _busybox_layer(), {BUSYBOX: ["/bin/sh"], PAUSE: ["/bin/sleep", "2147483647"]})


def write_image(archive: Path, name: str, files: Path) -> None:
    """An image of busybox and the files of a directory."""
    layer = io.BytesIO(_busybox_layer())
    with tarfile.open(fileobj=layer, mode="a") as tar:
        tar.add(files, arcname=".")
    _write(archive, layer.getvalue(), {name: ["/bin/sh"]})


def _write(archive: Path, layer: bytes, commands: Mapping[str, list[str]]) -> None:
    digest = hashlib.sha256(layer).hexdigest()
    manifest, configs = [], {}
    for name, command in commands.items():
        config = _config(digest, command)
        configs[f"{hashlib.sha256(config).hexdigest()}.json"] = config
        manifest.append({"Config": list(configs)[-1], "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]})
    with tarfile.open(archive, "w") as tar:
        for name, data in {**configs, f"{digest}/layer.tar": layer}.items():
            _add(tar, name, data)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _config(digest: str, command: list[str]) -> bytes:
    config = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    return json.dumps(config).encode()


def _busybox_layer() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for directory in ("bin", "etc", "tmp"):
            _add(tar, directory, kind=tarfile.DIRTYPE)
        _add(tar, "bin/busybox", Path(busybox).read_bytes())
        for tool in _TOOLS:
            _add(tar, f"bin/{tool}", kind=tarfile.SYMTYPE, link="busybox")
    return layer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size, entry.mode = kind, link, len(data), 0o755
    tar.addfile(entry, io.BytesIO(data))
