"""Volumes of a pod: one source each, and the rules of the common sources.

The retired in-tree sources of clouds and storage systems are only counted; those of CSI drivers are the driver's.
"""

from collections.abc import Callable, Iterator

from plugwright import quantity
from plugwright.apiserver.kinds.pod_validation import variables
from plugwright.apiserver.kinds.pod_validation.volume_mounts import local_path_errors
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    dns_subdomain_errors,
    duplicate,
    forbidden,
    invalid,
    invalid_for,
    required,
    unsupported,
)

__all__ = ["valid_volumes", "volume_errors"]

_HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MODE_RULE = "must be a number between 0 and 0777 (octal), both inclusive"
_FILE_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_SHORTEST_TOKEN, _LONGEST_TOKEN, _LONGEST_DRIVER = 600, 2**32, 63
# Sources in the order in which the API server examines them: the second of two is rejected.
_SOURCES = (
    "emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi",
    "glusterfs", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "flocker", "downwardAPI", "fc", "flexVolume",
    "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume", "azureDisk", "storageos",
    "projected", "scaleIO", "csi", "ephemeral", "image", "quobyte",
)  # fmt: skip


def valid_volumes(volumes: list[Object]) -> dict[str, Object]:
    """The volumes that containers can mount, by name."""
    return {
        str(volume["name"]): volume
        for number, volume in enumerate(volumes)
        if volume.get("name") and not any(_errors_of(f"[{number}]", volume))
    }


def volume_errors(volumes: list[Object]) -> Iterator[FieldError]:
    names: set[str] = set()
    for number, volume in enumerate(volumes):
        field, name = f"spec.volumes[{number}]", str(volume.get("name") or "")
        yield from _errors_of(field, volume)
        if name in names:
            yield duplicate(f"{field}.name", name)
        names.add(name)


def _errors_of(field: str, volume: Object) -> Iterator[FieldError]:
    name = str(volume.get("name") or "")
    if not name:
        yield required(f"{field}.name")
    else:
        yield from invalid_for(f"{field}.name", name, dns_label_errors(name))
    sources = [source for source in _SOURCES if volume.get(source) is not None]
    if not sources:
        yield required(field, "must specify a volume type")
    for source in sources[:1]:
        if source in _RULES:
            yield from _RULES[source](f"{field}.{source}", volume[source])
    for source in sources[1:]:
        yield forbidden(f"{field}.{source}", "may not specify more than 1 volume type")


def _empty_dir_errors(field: str, source: Object) -> Iterator[FieldError]:
    if quantity.zero_if_invalid(source.get("sizeLimit", 0)) < 0:
        yield forbidden(f"{field}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _host_path_errors(field: str, source: Object) -> Iterator[FieldError]:
    path = str(source.get("path") or "")
    if not path:
        yield required(f"{field}.path")
        return
    if ".." in path.split("/"):
        yield invalid(f"{field}.path", path, "must not contain '..'")
    yield from unsupported(f"{field}.type", source.get("type", ""), _HOST_PATH_TYPES)


def _config_map_errors(field: str, source: Object) -> Iterator[FieldError]:
    yield from _named_errors(field, source, "name")


def _secret_errors(field: str, source: Object) -> Iterator[FieldError]:
    yield from _named_errors(field, source, "secretName")


def _named_errors(field: str, source: Object, member: str) -> Iterator[FieldError]:
    if not source.get(member):
        yield required(f"{field}.{member}")
    yield from _mode_errors(f"{field}.defaultMode", source.get("defaultMode"))
    for number, item in enumerate(source.get("items") or []):
        yield from _item_errors(f"{field}.items[{number}]", item)


def _item_errors(field: str, item: Object) -> Iterator[FieldError]:
    if not item.get("key"):
        yield required(f"{field}.key")
    yield from _file_errors(field, item)


def _file_errors(field: str, item: Object) -> Iterator[FieldError]:
    path = str(item.get("path") or "")
    if not path:
        yield required(f"{field}.path")
    yield from _reserved_path_errors(f"{field}.path", path)
    yield from _mode_errors(f"{field}.mode", item.get("mode"))


def _reserved_path_errors(field: str, path: str) -> Iterator[FieldError]:
    yield from local_path_errors(field, path)
    if path.startswith("..") and not path.startswith("../"):
        yield invalid(field, path, "must not start with '..'")


def _mode_errors(field: str, mode: int | None) -> Iterator[FieldError]:
    if mode is not None and not 0 <= mode <= 0o777:
        yield invalid(field, mode, _MODE_RULE)


def _claim_errors(field: str, source: Object) -> Iterator[FieldError]:
    if not source.get("claimName"):
        yield required(f"{field}.claimName")


def _nfs_errors(field: str, source: Object) -> Iterator[FieldError]:
    for member in ("server", "path"):
        if not source.get(member):
            yield required(f"{field}.{member}")
    path = str(source.get("path") or "")
    if not path.startswith("/"):
        yield invalid(f"{field}.path", path, "must be an absolute path")


def _csi_errors(field: str, source: Object) -> Iterator[FieldError]:
    driver, secret = str(source.get("driver") or ""), source.get("nodePublishSecretRef")
    if not driver:
        yield required(f"{field}.driver")
    else:
        if len(driver) > _LONGEST_DRIVER:
            text = f"Too long: may not be more than {_LONGEST_DRIVER} bytes"
            yield FieldError(f"{field}.driver", text, "FieldValueTooLong")
        yield from invalid_for(f"{field}.driver", driver, dns_subdomain_errors(driver.lower()))
    if secret is not None and not secret.get("name"):
        yield required(f"{field}.nodePublishSecretRef.name")


def _image_errors(field: str, source: Object) -> Iterator[FieldError]:
    if not source.get("reference"):
        yield required(f"{field}.reference")
    yield from unsupported(f"{field}.pullPolicy", source.get("pullPolicy", "Always"), _PULL_POLICIES)


def _ephemeral_errors(field: str, source: Object) -> Iterator[FieldError]:
    if source.get("volumeClaimTemplate") is None:
        yield required(f"{field}.volumeClaimTemplate")


def _downward_errors(field: str, source: Object) -> Iterator[FieldError]:
    """Errors of a downward API source; the API server names the source, not the item."""
    yield from _mode_errors(f"{field}.defaultMode", source.get("defaultMode"))
    for item in source.get("items") or []:
        yield from _downward_item_errors(field, item)


def _downward_item_errors(field: str, item: Object) -> Iterator[FieldError]:
    yield from _file_errors(field, item)
    reference, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if reference is not None:
        yield from variables.field_reference_errors(f"{field}.fieldRef", reference, _FILE_FIELDS)
        if resource is not None:
            text = "fieldRef and resourceFieldRef can not be specified simultaneously"
            yield invalid(field, "resource", text)
    elif resource is not None:
        place = f"{field}.resourceFieldRef"
        yield from variables.resource_reference_errors(place, resource, needs_container=True)
    else:
        yield required(field, "one of fieldRef and resourceFieldRef is required")


def _projected_errors(field: str, source: Object) -> Iterator[FieldError]:
    paths: set[str] = set()
    yield from _mode_errors(f"{field}.defaultMode", source.get("defaultMode"))
    for number, part in enumerate(source.get("sources") or []):
        place = f"{field}.sources[{number}]"
        for kind in ("secret", "configMap"):
            if part.get(kind) is not None:
                yield from _named_errors(f"{place}.{kind}", part[kind], "name")
                yield from _path_conflicts(field, part[kind], paths, str(part[kind].get("name") or ""))
        if part.get("downwardAPI") is not None:
            for item in part["downwardAPI"].get("items") or []:
                yield from _downward_item_errors(f"{place}.downwardAPI", item)
            yield from _path_conflicts(field, part["downwardAPI"], paths, "")
        if part.get("serviceAccountToken") is not None:
            yield from _token_errors(field, f"{place}.serviceAccountToken", part["serviceAccountToken"])
        if sum(value is not None for value in part.values()) > 1:
            yield forbidden(place, "may not specify more than 1 volume type per source")


def _path_conflicts(field: str, source: Object, paths: set[str], name: str) -> Iterator[FieldError]:
    """`paths` are those of the preceding sources, to which these are added."""
    for item in source.get("items") or []:
        path = str(item.get("path") or "")
        if path and path in paths:
            yield invalid(field, name or path, "conflicting duplicate paths")
        paths.add(path)


def _token_errors(volume: str, field: str, token: Object) -> Iterator[FieldError]:
    seconds, path = int(token.get("expirationSeconds", 3600)), str(token.get("path") or "")
    if seconds < _SHORTEST_TOKEN:
        yield invalid(f"{field}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > _LONGEST_TOKEN:
        yield invalid(f"{field}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if not path:
        yield required(f"{volume}.path")
    else:
        yield from _reserved_path_errors(f"{volume}.path", path)


_RULES: dict[str, Callable[[str, Object], Iterator[FieldError]]] = {
    "configMap": _config_map_errors,
    "csi": _csi_errors,
    "downwardAPI": _downward_errors,
    "emptyDir": _empty_dir_errors,
    "ephemeral": _ephemeral_errors,
    "hostPath": _host_path_errors,
    "image": _image_errors,
    "nfs": _nfs_errors,
    "persistentVolumeClaim": _claim_errors,
    "projected": _projected_errors,
    "secret": _secret_errors,
}
