"""Volume mounts and block devices of containers: each names a volume of the pod, and no path is used twice."""

from collections.abc import Iterator, Mapping

from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, forbidden, invalid, missing, required, unsupported

__all__ = ["device_errors", "local_path_errors", "mount_errors"]

_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
_BLOCK_SOURCES = ("ephemeral", "persistentVolumeClaim")


def local_path_errors(field: str, path: str) -> Iterator[FieldError]:
    """Errors of a path that must stay below its start."""
    if path.startswith("/"):
        yield invalid(field, path, "must be a relative path")
    if ".." in path.split("/"):
        yield invalid(field, path, "must not contain '..'")


def mount_errors(field: str, container: Object, volumes: Mapping[str, Object]) -> Iterator[FieldError]:
    path, seen = f"{field}.volumeMounts", set[str]()
    devices = {str(device.get("name")): device.get("devicePath") for device in container.get("volumeDevices") or []}
    for number, mount in enumerate(container.get("volumeMounts") or []):
        place = f"{path}[{number}]"
        name, mount_path = str(mount.get("name") or ""), str(mount.get("mountPath") or "")
        if not name:
            yield required(f"{place}.name")
        if name not in volumes:
            yield missing(f"{place}.name", name)
        if not mount_path:
            yield required(f"{place}.mountPath")
        if mount_path in seen:
            yield invalid(f"{place}.mountPath", mount_path, "must be unique")
        seen.add(mount_path)
        if name in devices:
            yield invalid(f"{place}.name", name, "must not already exist in volumeDevices")
        if mount_path in devices.values():
            yield invalid(f"{place}.mountPath", mount_path, "must not already exist as a path in volumeDevices")
        yield from _sub_path_errors(path, place, mount)
        yield from _propagation_errors(path, mount, container)


def _sub_path_errors(path: str, place: str, mount: Object) -> Iterator[FieldError]:
    """Errors of sub-paths; for most of these the API server names the list, not the mount."""
    sub_path, expression = str(mount.get("subPath") or ""), str(mount.get("subPathExpr") or "")
    yield from local_path_errors(f"{path}.subPath", sub_path)
    if expression and sub_path:
        yield invalid(f"{place}.subPathExpr", expression, "subPathExpr and subPath are mutually exclusive")
    yield from local_path_errors(f"{path}.subPathExpr", expression)


def _propagation_errors(path: str, mount: Object, container: Object) -> Iterator[FieldError]:
    propagation, recursive = mount.get("mountPropagation"), mount.get("recursiveReadOnly")
    if propagation is not None:
        yield from unsupported(f"{path}.mountPropagation", propagation, _PROPAGATIONS)
        if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
            text = "Bidirectional mount propagation is available only to privileged containers"
            yield forbidden(f"{path}.mountPropagation", text)
    if recursive is None:
        return
    place = f"{path}.recursiveReadOnly"
    yield from unsupported(place, recursive, ("Disabled", "Enabled", "IfPossible"))
    if recursive in ("Enabled", "IfPossible"):
        if not mount.get("readOnly"):
            yield forbidden(place, "may only be specified when readOnly is true")
        if propagation not in (None, "None"):
            yield forbidden(place, "may only be specified when mountPropagation is None or not specified")


def device_errors(field: str, container: Object, volumes: Mapping[str, Object]) -> Iterator[FieldError]:
    names, paths = set[str](), set[str]()
    mounts = {str(mount.get("name")): mount.get("mountPath") for mount in container.get("volumeMounts") or []}
    for number, device in enumerate(container.get("volumeDevices") or []):
        place = f"{field}.volumeDevices[{number}]"
        name, path = str(device.get("name") or ""), str(device.get("devicePath") or "")
        yield from _device_volume_errors(f"{place}.name", name, volumes)
        if name in names:
            yield invalid(f"{place}.name", name, "must be unique")
        if not path:
            yield required(f"{place}.devicePath")
        if path in paths:
            yield invalid(f"{place}.devicePath", path, "must be unique")
        if ".." in path.split("/"):
            yield invalid(f"{place}.devicePath", path, "can not contain backsteps ('..')")
        if name in mounts:
            yield invalid(f"{place}.name", name, "must not already exist in volumeMounts")
        if path in mounts.values():
            yield invalid(f"{place}.devicePath", path, "must not already exist as a path in volumeMounts")
        names.add(name)
        paths.add(path)


def _device_volume_errors(field: str, name: str, volumes: Mapping[str, Object]) -> Iterator[FieldError]:
    if not name:
        yield required(field)
    if name not in volumes:
        yield missing(field, name)
    elif not any(volumes[name].get(source) is not None for source in _BLOCK_SOURCES):
        text = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        yield invalid(field, name, text)
