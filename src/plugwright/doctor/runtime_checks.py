"""The container runtime: whether it supports CDI names, and reads the directories to which plugwright writes.

Its CRI socket is used first; files are read if it does not respond.
"""

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ExaminedNode
from plugwright.doctor.node_processes import kubelet_configuration
from plugwright.errors import NotVisible, PlugwrightError
from plugwright.model import some
from plugwright.protocol import transport, wire_format
from plugwright.sdk import cdi
from plugwright.text import clean

__all__ = ["container_runtime", "runtime_cdi", "runtime_programs"]

_SOCKETS = ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/var/run/crio/crio.sock")
_CONTAINERD_FILE = "/etc/containerd/config.toml"
_CRIO_FILES = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
_VERSION, _STATUS = "/runtime.v1.RuntimeService/Version", "/runtime.v1.RuntimeService/Status"
_CRI_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_DISABLED = ("cri", *_CRI_PLUGINS)  # in `disabled_plugins`, as in Docker's package of containerd
_LIMIT = 5.0  # seconds
_LARGEST = 4 * 2**20  # bytes of a response
_CDI_SINCE, _CDI_ON_SINCE = (1, 7), (2, 0)  # of containerd


class CdiSupport(msgspec.Struct, frozen=True):
    """Support for CDI; None is unknown."""

    name: str  # containerd or cri-o
    version: tuple[int, ...] | None = None
    enabled: bool | None = None
    directories: tuple[str, ...] | None = None

    @property
    def shown(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}" if self.version else self.name


def container_runtime(view: ExaminedNode) -> DoctorCheck:
    """Whether the kubelet's container runtime answers on its CRI socket."""
    name, why = "container-runtime", "the kubelet cannot start containers, and its node is NotReady"
    view.need_node()
    endpoint = _endpoint(view)
    if (not endpoint or "containerd" in endpoint) and (problem := _file_problem(view)):
        fix = f"correct {_CONTAINERD_FILE}, then systemctl restart containerd; journalctl -u containerd -n 50"
        return found(
            name, f"{_CONTAINERD_FILE} is not TOML: {problem}", f"containerd does not start with it: {why}", fix
        )
    sockets = [endpoint] if endpoint else [path for path in _SOCKETS if view.path(path).is_socket()]
    problems = {path: _silence(view, path) for path in sockets}
    if working := next((path for path, problem in problems.items() if not problem), None):
        return healthy(name, f"{working} answers")
    if (not endpoint or "containerd" in endpoint) and (disabled := _disabled_plugin(view)):
        fix = f"remove {disabled} from disabled_plugins in {_CONTAINERD_FILE}, then systemctl restart containerd"
        return found(name, f"{disabled} is in disabled_plugins of {_CONTAINERD_FILE}", why, fix)
    if not problems:
        if view.exists(_CONTAINERD_FILE):
            return healthy(name, f"{_CONTAINERD_FILE} has the CRI plugin on; no socket is at the usual places")
        raise NotVisible(f"no container runtime at {some(_SOCKETS)}")
    service = "crio" if "crio" in sockets[0] else "containerd"
    fix = f"systemctl restart {service}; journalctl -u {service} -n 50"
    if endpoint:
        fix += "; or correct containerRuntimeEndpoint of the kubelet"
    return found(name, "; ".join(f"{path} {problem}" for path, problem in problems.items()), why, fix)


def _silence(view: ExaminedNode, socket: str) -> str:
    """Why a CRI socket does not answer; empty if it does."""
    path = view.path(socket)
    if not path.exists():
        return "does not exist"
    try:
        asyncio.run(_asked(path))
    except (OSError, PlugwrightError) as error:
        return f"does not answer: {error}"
    return ""


def _file_problem(view: ExaminedNode) -> str:
    """Why containerd's configuration cannot be parsed; empty if it can, or does not exist."""
    try:
        tomllib.loads(view.read_if_there(_CONTAINERD_FILE) or "")
    except tomllib.TOMLDecodeError as error:
        return str(error)
    return ""


def _disabled_plugin(view: ExaminedNode) -> str | None:
    text = view.read_if_there(_CONTAINERD_FILE)
    disabled = () if text is None else _texts(_toml(text).get("disabled_plugins")) or ()
    return next((plugin for plugin in disabled if plugin in _DISABLED), None)


def runtime_programs(view: ExaminedNode) -> DoctorCheck:
    """The programs of the runtimes that RuntimeClasses name, such as `nvidia-container-runtime`."""
    name = "runtime-programs"
    view.need_node()
    programs = dict(_programs(view))
    missing = {handler: path for handler, path in programs.items() if not view.exists(path)}
    if missing:
        return found(
            name,
            some([f"the runtime {handler} is {path}, which does not exist" for handler, path in missing.items()]),
            "pods with its RuntimeClass, or all pods if it is the default, stay in ContainerCreating",
            "install it (NVIDIA's: nvidia-container-toolkit), or remove it from the configuration of the runtime; then "
            "restart the container runtime",
        )
    return healthy(name, f"{len(programs)} programs of container runtimes exist")


def _programs(view: ExaminedNode) -> Iterator[tuple[str, str]]:
    """Handlers with the absolute paths of their programs, in the configuration of containerd or CRI-O."""
    main = _toml(view.read_if_there(_CONTAINERD_FILE) or "")
    imported = [_toml(view.read_if_there(path) or "") for path in _imports(view, main)]
    tables = [
        _member(_member(_member(_member(content, "plugins"), plugin), "containerd"), "runtimes")
        for content in (main, *imported)
        for plugin in _CRI_PLUGINS
    ]
    settings = {handler: _member(_member(table, handler), "options") for table in tables for handler in table}
    yield from _paths({handler: options.get("BinaryName") for handler, options in settings.items()})
    for text in _crio_texts(view):
        table = _member(_member(_member(_toml(text), "crio"), "runtime"), "runtimes")
        yield from _paths({handler: _member(table, handler).get("runtime_path") for handler in table})


def _paths(programs: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for handler, path in programs.items():
        if isinstance(path, str) and path.startswith("/"):
            yield handler, path


def runtime_cdi(view: ExaminedNode) -> DoctorCheck:
    name = "runtime-cdi"
    view.need_node()
    settings = _settings(view)
    enabled = _is_enabled(settings)
    if settings.name == "containerd":
        change = f"set enable_cdi = true in the CRI plugin of {_CONTAINERD_FILE}, then systemctl restart containerd"
    else:
        change = "set cdi_spec_dirs in [crio.runtime] of /etc/crio/crio.conf, then systemctl restart crio"
    if enabled is None:
        raise NotVisible(f"neither the CRI socket nor a configuration file says whether {settings.shown} has CDI on")
    if not enabled and not _uses_cdi(view):
        return healthy(name, f"CDI is off in {settings.shown}, and nothing here uses it")
    why = "CDI names are ignored: containers start without their devices, or not at all"
    if settings.version and settings.name == "containerd" and settings.version < _CDI_SINCE:
        return found(name, f"{settings.shown} has no CDI", why, "update containerd to 1.7 or later")
    if not enabled:
        return found(name, f"CDI is off in {settings.shown}", why, change)
    if settings.directories is not None and not _reads_dynamic(settings.directories):
        text = f"{settings.shown} reads CDI specs in {some(settings.directories)}, not in {cdi.DYNAMIC}"
        return found(name, text, why, f"add {cdi.DYNAMIC} to cdi_spec_dirs and restart the container runtime")
    return healthy(name, f"CDI is on in {settings.shown}")


def _is_enabled(settings: CdiSupport) -> bool | None:
    if settings.name != "containerd":
        return True if settings.directories is None else bool(settings.directories)
    if settings.version is not None and settings.version < _CDI_SINCE:
        return False
    if settings.enabled is None and settings.version is not None:
        return settings.version >= _CDI_ON_SINCE
    return settings.enabled


def _reads_dynamic(directories: Sequence[str]) -> bool:
    return any(directory.rstrip("/") in (str(cdi.DYNAMIC), "/run/cdi") for directory in directories)


def _uses_cdi(view: ExaminedNode) -> bool:
    """Whether the node has specs, or serves claims, whose devices are CDI names. Unknown without a daemon."""
    if any(name.endswith((".json", ".yaml")) for path in view.spec_directories for name in view.names(path)):
        return True
    return any(resource.driver is not None for resource in view.report.resources)


def _settings(view: ExaminedNode) -> CdiSupport:
    from_files = _from_files(view)
    for socket in _sockets(view):
        if not view.path(socket).is_socket():
            continue
        try:
            asked = asyncio.run(_asked(view.path(socket)))
        except (OSError, PlugwrightError):
            continue
        if from_files is None or from_files.name != asked.name:
            return asked
        return CdiSupport(
            asked.name,
            asked.version,
            from_files.enabled if asked.enabled is None else asked.enabled,
            from_files.directories if asked.directories is None else asked.directories,
        )
    if from_files is None:
        raise NotVisible("no container runtime answers, and none has a configuration file")
    return from_files


def _sockets(view: ExaminedNode) -> Iterator[str]:
    if endpoint := _endpoint(view):
        yield endpoint
    yield from _SOCKETS


def _endpoint(view: ExaminedNode) -> str:
    """The CRI socket in the kubelet's configuration; empty if it names none."""
    try:
        return kubelet_configuration(view).text("containerRuntimeEndpoint").removeprefix("unix://")
    except (OSError, ValueError, PlugwrightError):
        return ""


async def _asked(socket: Path) -> CdiSupport:
    async with transport.connect(socket, _LARGEST) as runtime:
        version = await runtime.call(_VERSION, b"", wire_format.read, _LIMIT)
        status = await runtime.call(_STATUS, wire_format.write_flag(1, True), wire_format.read, _LIMIT)
    name = clean(wire_format.text(version, 2), 64)
    settings = CdiSupport("containerd" if name == "containerd" else "cri-o")
    found_version = re.match(r"v?(\d{1,4})\.(\d{1,4})", wire_format.text(version, 3))
    numbers = (int(found_version[1]), int(found_version[2])) if found_version else None
    info = {wire_format.text(pair, 1): wire_format.text(pair, 2) for pair in wire_format.messages(status, 2)}
    try:
        config = json.loads(info.get("config", "{}"))
    except ValueError:
        config = {}
    enabled = config.get("enableCDI") if isinstance(config, dict) else None
    directories = config.get("cdiSpecDirs") if isinstance(config, dict) else None
    return replace(
        settings,
        version=numbers,
        enabled=enabled if isinstance(enabled, bool) else None,
        directories=tuple(map(str, directories)) if isinstance(directories, list) else None,
    )


def _from_files(view: ExaminedNode) -> CdiSupport | None:
    if (text := view.read_if_there(_CONTAINERD_FILE)) is not None:
        return _containerd(view, text)
    settings = None
    for crio in _crio_texts(view):
        content = _member(_toml(crio), "crio")
        directories = _texts(_member(content, "runtime").get("cdi_spec_dirs"))
        before = settings.directories if settings is not None else None
        settings = CdiSupport("cri-o", directories=before if directories is None else directories)
    return settings


def _crio_texts(view: ExaminedNode) -> list[str]:
    file, directory = _CRIO_FILES
    texts = [view.read_if_there(file), *(view.read_if_there(f"{directory}/{name}") for name in view.names(directory))]
    return [text for text in texts if text]


def _containerd(view: ExaminedNode, text: str) -> CdiSupport:
    """The settings of containerd. A file of version 3 is of containerd 2; imported files override the importing one."""
    main = _toml(text)
    settings = CdiSupport("containerd")
    if main.get("version") == 3:
        settings = replace(settings, version=_CDI_ON_SINCE)
    imported = (view.read_if_there(path) for path in _imports(view, main))
    for content in [main, *(_toml(each) for each in imported if each is not None)]:
        for plugin in _CRI_PLUGINS:
            cri = _member(_member(content, "plugins"), plugin)
            enabled, directories = cri.get("enable_cdi"), _texts(cri.get("cdi_spec_dirs"))
            if isinstance(enabled, bool):
                settings = replace(settings, enabled=enabled)
            if directories is not None:
                settings = replace(settings, directories=directories)
    return settings


def _imports(view: ExaminedNode, content: Mapping[str, object]) -> Iterator[str]:
    for pattern in _texts(content.get("imports")) or ():
        directory, _, name = pattern.rpartition("/")
        directory = directory if directory.startswith("/") else str(Path(_CONTAINERD_FILE).parent / directory)
        yield from (f"{directory}/{entry}" for entry in view.names(directory) if fnmatchcase(entry, name))


def _toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the configuration of the container runtime must be TOML: {error}") from error


def _member(content: Mapping[str, object], name: str) -> dict[str, object]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None
