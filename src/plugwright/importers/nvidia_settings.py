"""What was said to NVIDIA's plugin, and where: its file, its environment variables, its flags.

A flag stands above a variable, a variable above the file. What the settings mean is `nvidia`'s to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plugwright.importers.source import Note, Source, Value, flag_word

__all__ = ["OWN_VARIABLES", "Settings", "gather"]

_USE_IGNORED = "use-ignored-keys"
_TOP = ("version", "flags", "resources", "sharing", "imex")
_NAMES = {
    "migStrategy": ("mig-strategy", "MIG_STRATEGY"),
    "failOnInitError": ("fail-on-init-error", "FAIL_ON_INIT_ERROR"),
    "mpsRoot": ("mps-root", "MPS_ROOT"),
    "nvidiaDriverRoot": ("driver-root", "nvidia-driver-root", "NVIDIA_DRIVER_ROOT"),
    "nvidiaDevRoot": ("dev-root", "nvidia-dev-root", "NVIDIA_DEV_ROOT"),
    "gdrcopyEnabled": ("gdrcopy-enabled", "GDRCOPY_ENABLED"),
    "gdsEnabled": ("gds-enabled", "GDS_ENABLED"),
    "mofedEnabled": ("mofed-enabled", "MOFED_ENABLED"),
    "deviceDiscoveryStrategy": ("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY"),
    "passDeviceSpecs": ("pass-device-specs", "PASS_DEVICE_SPECS"),
    "deviceListStrategy": ("device-list-strategy", "DEVICE_LIST_STRATEGY"),
    "deviceIDStrategy": ("device-id-strategy", "DEVICE_ID_STRATEGY"),
    "cdiAnnotationPrefix": ("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX"),
    "nvidiaCTKPath": ("nvidia-cdi-hook-path", "nvidia-ctk-path", "NVIDIA_CTK_PATH", "NVIDIA_CDI_HOOK_PATH"),
    "containerDriverRoot": (
        *("driver-root-ctr-path", "container-driver-root", "CONTAINER_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH"),
    ),
    "sharedDevicesAllocationPolicy": ("shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY"),
    "channelIDs": ("imex-channel-ids", "IMEX_CHANNEL_IDS"),
    "required": ("imex-required", "IMEX_REQUIRED"),
    "disableHealthChecks": ("DP_DISABLE_HEALTHCHECKS",),
    "enableHealthChecks": ("DP_ENABLE_HEALTHCHECKS",),
}
_IN_PLUGIN = (
    *("passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath"),
    *("containerDriverRoot", "sharedDevicesAllocationPolicy"),
)
_IN_FLAGS = (
    *("migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot", "gdrcopyEnabled", "gdsEnabled"),
    *("mofedEnabled", "deviceDiscoveryStrategy", "useNodeFeatureAPI", "plugin", "gfd"),
)
_SWITCHES = {"failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "passDeviceSpecs", "required"}
_KUBELET = "where the kubelet is is said to `plugwright run` by --kubelet-dir"
_HOOKS = "our CDI specs have no hooks and no such switches"
_ELSEWHERE = {
    "kubelet-socket": _KUBELET,
    "KUBELET_SOCKET": _KUBELET,
    "cdi-feature-flags": _HOOKS,
    "CDI_FEATURE_FLAGS": _HOOKS,
    "cdi-disable-hooks": _HOOKS,
    "CDI_DISABLE_HOOKS": _HOOKS,
}
_SILENT = {"config-file"}
_WORDS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}

# By which a manifest of NVIDIA's plugin can be told from another's.
OWN_VARIABLES = frozenset(name for names in _NAMES.values() for name in names if name.isupper())


@dataclass(slots=True)
class Settings:
    """Each setting that something was said about, and what is to be said about them in turn."""

    top: Mapping[str, Value] = field(default_factory=dict)
    found: dict[str, Value] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    use_ignored: bool = False

    def text(self, name: str, default: str, *choices: str) -> str:
        value = self.found.get(name)
        if value is None or not value.raw:
            return default
        if choices and value.raw not in choices:
            raise value.error(f"NVIDIA's plugin takes {', '.join(choices)}, not {value.raw!r}")
        return str(value.raw)

    def switch(self, name: str, default: bool = False) -> bool:
        value = self.found.get(name)
        if value is None or not value.raw:
            return default
        if value.raw.lower() not in _WORDS:
            raise value.error(f"true or false is needed here, not {value.raw!r}")
        return _WORDS[value.raw.lower()]

    def texts(self, name: str) -> list[str]:
        """Of a list, or of a text with commas."""
        value = self.found.get(name)
        if value is None:
            return []
        words = [str(each.raw) for each in value.items()] if value.is_list else str(value.raw).split(",")
        return [word.strip() for word in words if word.strip()]

    def note(self, name: str, text: str) -> None:
        """Where something was said about it."""
        if name in self.found:
            self.notes.append(self.found[name].note(text))


def gather(source: Source) -> Settings:
    settings = Settings()
    if source.root is not None:
        settings.top = source.root.fields(_TOP, settings.notes)
    version = settings.top.get("version")
    if version is not None and version.raw != "v1":
        raise version.error(f"NVIDIA's plugin knows version v1, not {version.raw!r}")
    _take_file(settings)
    known = {name: setting for setting, names in _NAMES.items() for name in names}
    _take_variables(settings, source, known)
    _take_flags(settings, source, known)
    return settings


def _take_file(settings: Settings) -> None:
    top, notes = settings.top, settings.notes
    flags = top["flags"].fields(_IN_FLAGS, notes) if "flags" in top else {}
    if "plugin" in flags:
        flags |= flags.pop("plugin").fields(_IN_PLUGIN, notes)
    for name in ("gfd", "useNodeFeatureAPI"):
        if name in flags:
            notes.append(flags.pop(name).note("is for GPU feature discovery, which goes on without us"))
    if "imex" in top:
        flags |= top["imex"].fields(("channelIDs", "required"), notes)
    settings.found |= flags


def _take_variables(settings: Settings, source: Source, known: Mapping[str, str]) -> None:
    for name, value in sorted(source.environment.items()):
        if name in _ELSEWHERE:
            settings.notes.append(value.note(f"{name}: {_ELSEWHERE[name]}"))
        elif name in known:
            settings.found[known[name]] = value


def _take_flags(settings: Settings, source: Source, known: Mapping[str, str]) -> None:
    words = list(source.flags)
    while words:
        word = words.pop(0)
        name, equals, text = str(word.raw).lstrip("-").partition("=")
        if not word.raw.startswith("-"):
            continue  # the program itself, or a shell's word
        if name in known:
            apart = not equals and known[name] not in _SWITCHES and words
            settings.found[known[name]] = words.pop(0) if apart else flag_word(word.line, text or "true")
        elif name in _ELSEWHERE:
            settings.notes.append(word.note(f"--{name}: {_ELSEWHERE[name]}"))
        elif name == _USE_IGNORED:
            settings.use_ignored = True
        elif name not in _SILENT:
            settings.notes.append(word.note(f"unknown flag '{word.raw}', left out"))
