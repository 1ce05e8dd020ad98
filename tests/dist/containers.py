"""Containers of an image's archive, started as a kubelet and its runtime start them: with runc, without an engine."""

import asyncio
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.requirements import unavailable

__all__ = ["Container", "Image", "runtime", "unpack", "write_bundle"]

Object = Mapping[str, Any]

_NAMESPACES = ("pid", "ipc", "uts", "mount", "network")
_MOUNTS = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
)
_FIELDS = {"spec.nodeName": "node-1", "metadata.uid": "8a4ab1a8-7f22-4a9f-b7a7-1f0b5ea0ac1f"}
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def runtime() -> str:
    program = shutil.which("runc") or shutil.which("crun")
    if program is None or os.geteuid() != 0:
        unavailable("images", "containers need root and runc")
    return program


class Image(NamedTuple):
    """An unpacked image: its files and its configuration."""

    rootfs: Path
    config: Object


def unpack(archive: Path, rootfs: Path) -> Image:
    with tarfile.open(archive) as outer:
        [manifest] = json.loads(_read(outer, "manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                _apply(inner, rootfs)
        return Image(rootfs, json.loads(_read(outer, manifest["Config"])))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _apply(layer: tarfile.TarFile, rootfs: Path) -> None:
    for member in layer:
        path = rootfs / member.name
        if path.name == _OPAQUE:
            for each in path.parent.iterdir():
                _remove(each)
        elif path.name.startswith(_WHITEOUT):
            _remove(path.with_name(path.name.removeprefix(_WHITEOUT)))
        else:
            if not (member.isdir() and path.is_dir()):
                _remove(path)
            layer.extract(member, rootfs, filter="tar")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_bundle(bundle: Path, host: Path, image: Image, pod: Object, configs: Mapping[str, Object]) -> None:
    """The runtime's config.json for the only container of a pod; paths of the node lie below `host`."""
    [container] = pod["containers"]
    security = pod.get("securityContext", {}) | container.get("securityContext", {})
    assert security["capabilities"] == {"drop": ["ALL"]}  # none are given below
    own = image.config["config"]
    user = [*map(int, (own.get("User") or "0:0").split(":"))]
    entrypoint = container.get("command", own.get("Entrypoint") or [])
    default = [] if "command" in container else own.get("Cmd") or []
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": security.get("runAsUser", user[0]), "gid": security.get("runAsGroup", user[-1])},
            "args": [*entrypoint, *container.get("args", default)],
            "env": [*(own.get("Env") or []), *_variables(container)],
            "cwd": own.get("WorkingDir") or "/",
            "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
        },
        "root": {"path": str(image.rootfs), "readonly": security.get("readOnlyRootFilesystem", False)},
        "mounts": [*_MOUNTS, *_volumes(bundle, host, pod, container, configs)],
        "linux": {"namespaces": [{"type": each} for each in _NAMESPACES]},
    }
    (bundle / "config.json").write_text(json.dumps(config))


def _variables(container: Object) -> Iterator[str]:
    for variable in container.get("env", []):
        source = variable.get("valueFrom")
        yield f"{variable['name']}={_FIELDS[source['fieldRef']['fieldPath']] if source else variable['value']}"


def _volumes(
    bundle: Path, host: Path, pod: Object, container: Object, configs: Mapping[str, Object]
) -> Iterator[Mapping[str, object]]:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        source, volume = bundle / "volumes" / mount["name"], volumes[mount["name"]]
        if "hostPath" in volume:
            source = host / volume["hostPath"]["path"].lstrip("/")
        source.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            for name, text in configs[volume["configMap"]["name"]]["data"].items():
                (source / name).write_text(text)
        options = ["rbind", "ro" if mount.get("readOnly") else "rw"]
        yield {"destination": mount["mountPath"], "type": "bind", "source": str(source), "options": options}


class Container:
    """A running container."""

    def __init__(self, bundle: Path, name: str) -> None:
        self._bundle, self._name = bundle, name
        self._command = (runtime(), "--root", str(bundle / "runtime"))
        self._process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Container"]:
        with (self._bundle / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, "run", "--bundle", str(self._bundle), self._name,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield self
        except BaseException as error:
            error.add_note(f"the container's log:\n{self.log()[-4000:]}")
            raise
        finally:
            await self._call("delete", "--force", self._name)
            await self._process.wait()

    async def execute(self, *command: str) -> tuple[int, str]:
        """The exit status and the output of a command in the container."""
        return await self._call("exec", self._name, *command)

    async def ended(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> int:
        """The exit status of its process, after a SIGTERM."""
        await self._call("kill", self._name, "TERM")
        return await self.ended()

    def log(self) -> str:
        return (self._bundle / "log").read_text(errors="replace")

    async def _call(self, *arguments: str) -> tuple[int, str]:
        called = await asyncio.create_subprocess_exec(
            *self._command, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await called.communicate()
        assert called.returncode is not None
        return called.returncode, output.decode(errors="replace")
