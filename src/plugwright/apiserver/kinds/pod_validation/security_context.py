"""Security contexts of pods and containers: users, groups, profiles, sysctls, and limits of operating systems."""

import re
from collections.abc import Iterator

from plugwright.apiserver.kinds.pod_validation.volume_mounts import local_path_errors
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, duplicate, forbidden, invalid, required, unsupported

__all__ = ["container_errors", "pod_errors"]

_LARGEST_ID = 2**31 - 1
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = rf"({_SEGMENT}[\./])*{_SEGMENT}"
_LONGEST_SYSCTL = 253
_IPC_SYSCTLS = ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
_NOT_WINDOWS = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls", "runAsUser",
    "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy",
)  # fmt: skip
_NOT_WINDOWS_CONTAINERS = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "privileged",
    "allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup",
)  # fmt: skip
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
# A context as printed by the API server: its fields in their order, absent ones as null.
_PRINTED = (
    "capabilities", "privileged", "seLinuxOptions", "windowsOptions", "runAsUser", "runAsGroup", "runAsNonRoot",
    "readOnlyRootFilesystem", "allowPrivilegeEscalation", "procMount", "seccompProfile", "appArmorProfile",
)  # fmt: skip


def pod_errors(spec: Object) -> Iterator[FieldError]:
    context, field = spec.get("securityContext") or {}, "spec.securityContext"
    for name in ("fsGroup", "runAsUser", "runAsGroup"):
        yield from _id_errors(f"{field}.{name}", context.get(name))
    for number, group in enumerate(context.get("supplementalGroups") or []):
        yield from _id_errors(f"{field}.supplementalGroups[{number}]", group)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        text = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid(f"{field}.shareProcessNamespace", True, text)
    yield from _sysctl_errors(f"{field}.sysctls", context.get("sysctls") or [], spec)
    for name, supported in (
        ("fsGroupChangePolicy", ("Always", "OnRootMismatch")),
        ("supplementalGroupsPolicy", ("Merge", "Strict")),
        ("seLinuxChangePolicy", ("Recursive",)),
    ):
        if context.get(name) is not None:
            yield from unsupported(f"{field}.{name}", context[name], supported)
    yield from _seccomp_errors(f"{field}.seccompProfile", context.get("seccompProfile"))
    yield from _app_armor_errors(f"{field}.appArmorProfile", context.get("appArmorProfile"))
    yield from _host_user_errors(spec)
    yield from _operating_system_errors(spec)


def container_errors(field: str, context: Object, has_host_users: bool) -> Iterator[FieldError]:
    for name in ("runAsUser", "runAsGroup"):
        yield from _id_errors(f"{field}.{name}", context.get(name))
    proc_mount = context.get("procMount")
    if proc_mount is not None:
        yield from unsupported(f"{field}.procMount", proc_mount, ("Default", "Unmasked"))
        if proc_mount == "Unmasked" and has_host_users:
            yield invalid(f"{field}.procMount", proc_mount, "`hostUsers` must be false to use `Unmasked`")
    yield from _seccomp_errors(f"{field}.seccompProfile", context.get("seccompProfile"))
    if context.get("allowPrivilegeEscalation") is False:
        rule = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            yield invalid(field, _printed(context), f"{rule} `privileged` to true")
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or []):
            yield invalid(field, _printed(context), f"{rule} `capabilities.Add` CAP_SYS_ADMIN")
    yield from _app_armor_errors(f"{field}.appArmorProfile", context.get("appArmorProfile"))


def _printed(context: Object) -> Object:
    printed = {f"{name[0].upper()}{name[1:]}".replace("SeLinux", "SELinux"): context.get(name) for name in _PRINTED}
    capabilities = context.get("capabilities")
    if capabilities is not None:
        printed["Capabilities"] = {"Add": capabilities.get("add"), "Drop": capabilities.get("drop")}
    return printed


def _id_errors(field: str, number: int | None) -> Iterator[FieldError]:
    if number is not None and not 0 <= number <= _LARGEST_ID:
        yield invalid(field, number, f"must be between 0 and {_LARGEST_ID}, inclusive")


def _seccomp_errors(field: str, profile: Object | None) -> Iterator[FieldError]:
    if profile is None:
        return
    kind, path = str(profile.get("type") or ""), profile.get("localhostProfile")
    if not kind:
        yield required(f"{field}.type", "type is required when seccompProfile is set")
    else:
        yield from unsupported(f"{field}.type", kind, _PROFILES)
    if kind == "Localhost":
        if path is None:
            yield required(f"{field}.localhostProfile", "must be set when seccomp type is Localhost")
        else:
            yield from local_path_errors(f"{field}.localhostProfile", str(path))
    elif path is not None:
        printed = {"Type": kind, "LocalhostProfile": path}
        yield invalid(f"{field}.localhostProfile", printed, "can only be set when seccomp type is Localhost")


def _app_armor_errors(field: str, profile: Object | None) -> Iterator[FieldError]:
    if profile is None:
        return
    kind, name = str(profile.get("type") or ""), profile.get("localhostProfile")
    if not kind:
        yield required(f"{field}.type", "type is required when appArmorProfile is set")
    else:
        yield from unsupported(f"{field}.type", kind, _PROFILES)
    if kind == "Localhost":
        if not name or not str(name).strip():
            yield required(f"{field}.localhostProfile", "must be set when AppArmor type is Localhost")
        elif name != str(name).strip():
            yield invalid(f"{field}.localhostProfile", name, "must not be padded with whitespace")
    elif name is not None:
        yield invalid(f"{field}.localhostProfile", name, "can only be set when AppArmor type is Localhost")


def _sysctl_errors(field: str, sysctls: list[Object], spec: Object) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, sysctl in enumerate(sysctls):
        place, name = f"{field}[{number}].name", str(sysctl.get("name") or "")
        if not name:
            yield required(place)
        elif len(name) > _LONGEST_SYSCTL or not re.fullmatch(_SYSCTL, name):
            yield invalid(place, name, f"must have at most {_LONGEST_SYSCTL} characters and match regex ^{_SYSCTL}$")
        elif name in seen:
            yield duplicate(place, name)
        seen.add(name)
        if spec.get("hostNetwork") and name.replace("/", ".").startswith("net."):
            yield invalid(place, name, "may not be specified when 'hostNetwork' is true")
        elif spec.get("hostIPC") and name.replace("/", ".").startswith(_IPC_SYSCTLS):
            yield invalid(place, name, "may not be specified when 'hostIPC' is true")


def _host_user_errors(spec: Object) -> Iterator[FieldError]:
    if spec.get("hostUsers", True):
        return
    for name, field in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")):
        if spec.get(name):
            yield forbidden(f"spec.{field}", "when `hostUsers` is false")
    for part in _CONTAINER_LISTS:
        for number, container in enumerate(spec.get(part) or []):
            if container.get("volumeDevices"):
                yield forbidden(f"spec.{part}[{number}].volumeDevices", "when `hostUsers` is false")


def _operating_system_errors(spec: Object) -> Iterator[FieldError]:
    if spec.get("os") is None:
        return
    name = str(spec["os"].get("name") or "")
    if not name:
        yield required("spec.os.name")
    elif name == "linux":
        rule = "windows options cannot be set for a linux pod"
        yield from _set_errors(spec, ("windowsOptions",), ("windowsOptions",), rule)
    elif name == "windows":
        for part in ("hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"):
            if spec.get(part) is not None and (spec[part] or part not in ("hostPID", "hostIPC")):
                yield forbidden(f"spec.{part}", "cannot be set for a windows pod")
        yield from _set_errors(spec, _NOT_WINDOWS, _NOT_WINDOWS_CONTAINERS, "cannot be set for a windows pod")
    else:
        yield from unsupported("spec.os", name, ("linux", "windows"))


def _set_errors(
    spec: Object, of_pod: tuple[str, ...], of_containers: tuple[str, ...], rule: str
) -> Iterator[FieldError]:
    for name in of_pod:
        if (spec.get("securityContext") or {}).get(name) is not None:
            yield forbidden(f"spec.securityContext.{name}", rule)
    for part in _CONTAINER_LISTS:
        for number, container in enumerate(spec.get(part) or []):
            for name in of_containers:
                if (container.get("securityContext") or {}).get(name) is not None:
                    yield forbidden(f"spec.{part}[{number}].securityContext.{name}", rule)
