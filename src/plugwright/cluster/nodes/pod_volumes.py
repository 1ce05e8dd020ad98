"""The volumes of a node's pods: directories and files for container processes at their mount paths.

Supported are emptyDir, hostPath, configMap, secret, downwardAPI and projected. Contents are written once, when the pod
starts; later changes of a ConfigMap are not written. Other volumes keep the pod's containers from being created.
"""

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes.container_env import PodFacts, decoded_data, field_text, resource_text
from plugwright.cluster.nodes.restarts import containers_of
from plugwright.errors import ContainerConfigError, VolumeNotMounted
from plugwright.kubelet import sandbox

__all__ = ["EMULATED_VOLUMES", "PodVolumes"]

EMULATED_VOLUMES = ("configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret")
_PROJECTED = ("configMap", "downwardAPI", "secret", "serviceAccountToken")
_WRITABLE = ("emptyDir", "hostPath")
_FILE_MODE = 0o644
_READABLE_BY_ALL, _WRITABLE_BY_ALL, _STICKY = 0o755, 0o777, 0o1777
_OF_THE_NODE = {
    "/var/lib/kubelet": "",
    "/var/lib/plugwright": "plugwright",  # a daemon's own state: two nodes must not share it
    "/etc/cdi": "cdi",
    "/run/cdi": "cdi",
    "/var/run/cdi": "cdi",
}

_HOST_PATH_TYPES = {  # required type of a path, and the kubelet's message otherwise
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class PodVolumes:
    """`kubelet_dir` is the node's; None if containers are not run, in which case nothing is written.

    A hostPath in `/var/lib/kubelet`, `/var/lib/plugwright` or a directory of CDI specs is in the node's own directory,
    because those of the machine belong to another kubelet or to none.
    """

    def __init__(self, kubelet_dir: Path | None) -> None:
        self._kubelet_dir = kubelet_dir

    async def set_up(self, facts: PodFacts) -> None:
        """Sets up all mounted volumes; raises `VolumeNotMounted` for the first failure."""
        spec = facts.stored["spec"]
        mounted = {mount["name"] for container in containers_of(spec) for mount in container.get("volumeMounts") or ()}
        for volume in spec.get("volumes") or ():
            if volume["name"] not in mounted:
                continue
            try:
                await self._set_up(facts, volume)
            except ContainerConfigError as error:
                raise VolumeNotMounted(volume["name"], str(error)) from error
            except OSError as error:
                raise VolumeNotMounted(volume["name"], f"{error.filename}: {error.strerror}") from error

    def mounts(self, stored: Object, container: Object) -> list[sandbox.PathSpec]:
        volumes = {volume["name"]: volume for volume in stored["spec"].get("volumes") or ()}
        return [self._mount(stored, volumes[mount["name"]], mount) for mount in container.get("volumeMounts") or ()]

    def _mount(self, stored: Object, volume: Object, mount: Object) -> sandbox.PathSpec:
        source, is_writable = self._source(stored, volume), _kind(volume) in _WRITABLE
        if mount.get("subPath"):
            source /= str(mount["subPath"]).lstrip("/")
            if is_writable and not source.exists():
                source.mkdir(parents=True)
        return str(source), str(mount["mountPath"]), bool(mount.get("readOnly")) or not is_writable, sandbox.REQUIRED

    def termination_log(self, stored: Object, container: str, attempt: int) -> Path:
        """The file to which a container writes its last message."""
        path = self._pod_directory(stored) / "containers" / container / str(attempt)
        path.parent.mkdir(mode=_READABLE_BY_ALL, parents=True, exist_ok=True)
        path.touch(0o666)
        return path

    def remove(self, uid: str) -> None:
        if self._kubelet_dir is not None:
            shutil.rmtree(self._kubelet_dir / "pods" / uid, ignore_errors=True)

    async def _set_up(self, facts: PodFacts, volume: Object) -> None:
        kind = _kind(volume)
        if kind not in EMULATED_VOLUMES:
            raise ContainerConfigError(f"plugwright does not emulate volumes of the type {kind}")
        source = volume.get(kind) or {}
        files = await _contents(facts, kind, source)
        if self._kubelet_dir is None:
            return
        path = self._source(facts.stored, volume)
        if kind == "hostPath":
            _check_host_path(path, str(source.get("type") or ""))
        else:
            _write(path, files, int(source.get("defaultMode") or _FILE_MODE))
            path.chmod(_mode(kind, source))

    def _source(self, stored: Object, volume: Object) -> Path:
        if not volume.get("hostPath"):
            return self._pod_directory(stored) / "volumes" / str(volume["name"])
        path = Path(volume["hostPath"]["path"])
        for directory, own in _OF_THE_NODE.items():
            if self._kubelet_dir is not None and path.is_relative_to(directory):
                return self._kubelet_dir / own / path.relative_to(directory)
        return path

    def directory(self, stored: Object, name: str) -> Path:
        """The directory of a volume without a name in the pod."""
        return self._pod_directory(stored) / "volumes" / name

    def _pod_directory(self, stored: Object) -> Path:
        assert self._kubelet_dir is not None
        return self._kubelet_dir / "pods" / str(stored["metadata"]["uid"])


def _kind(volume: Object) -> str:
    return next((name for name in volume if name != "name" and volume[name] is not None), "emptyDir")


def _mode(kind: str, source: Object) -> int:
    """The mode of a directory; an emptyDir in memory is a tmpfs, in which only its owner can access a file."""
    if kind != "emptyDir":
        return _READABLE_BY_ALL
    return _STICKY if source.get("medium") == "Memory" else _WRITABLE_BY_ALL


async def _contents(facts: PodFacts, kind: str, source: Object) -> dict[str, bytes]:
    """The files of a volume, by path."""
    match kind:
        case "configMap":
            return _chosen(_config_files(await facts.config_map(source) or {}), source, "config")
        case "secret":
            return _chosen(await facts.secret(source) or {}, source, "secret")
        case "downwardAPI":
            return {str(item["path"]): _downward(facts, item) for item in source.get("items") or ()}
        case "projected":
            return await _projected(facts, source)
    return {}


async def _projected(facts: PodFacts, source: Object) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for part in source.get("sources") or ():
        kind = next((name for name in part if part[name] is not None), "")
        if kind not in _PROJECTED:
            raise ContainerConfigError(f"plugwright does not emulate projected volumes with {kind}")
        # Every pod of a real cluster has a service account's token: its file is omitted, the others exist.
        files |= await _contents(facts, kind, part[kind])
    return files


def _downward(facts: PodFacts, item: Object) -> bytes:
    if item.get("fieldRef"):
        return field_text(facts, str(item["fieldRef"].get("fieldPath") or "")).encode()
    return resource_text(facts, {}, item.get("resourceFieldRef") or {}).encode()


def _config_files(config_map: Object) -> dict[str, bytes]:
    texts = {key: str(text).encode() for key, text in (config_map.get("data") or {}).items()}
    return texts | decoded_data(config_map.get("binaryData") or {})


def _chosen(data: Mapping[str, bytes], source: Object, described: str) -> dict[str, bytes]:
    items = source.get("items")
    if not items:
        return dict(data)
    chosen = {}
    for item in items:
        if item["key"] in data:
            chosen[str(item["path"])] = data[item["key"]]
        elif not source.get("optional"):
            raise ContainerConfigError(f"references non-existent {described} key: {item['key']}")
    return chosen


def _write(directory: Path, files: Mapping[str, bytes], mode: int) -> None:
    directory.mkdir(mode=_READABLE_BY_ALL, parents=True, exist_ok=True)
    for name, content in sorted(files.items()):
        path = directory / name.lstrip("/")
        if ".." in Path(name).parts:  # the API server rejects it
            raise ContainerConfigError(f"must not contain '..': {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def _check_host_path(path: Path, kind: str) -> None:
    """Checks a path as the kubelet does, and creates it if required by its type."""
    if kind not in _HOST_PATH_TYPES:
        return
    if kind == "DirectoryOrCreate" and not path.exists():
        path.mkdir(mode=_READABLE_BY_ALL, parents=True)
    if kind == "FileOrCreate" and not path.exists():
        path.touch(_FILE_MODE)
    is_such, described = _HOST_PATH_TYPES[kind]
    if not path.exists() or not is_such(path.stat().st_mode):
        raise ContainerConfigError(f"hostPath type check failed: {path} is not {described}")
