"""Settings of NVIDIA's plugin, from its file, its environment variables and its flags.

A flag overrides a variable, a variable overrides the file. The meaning of a setting is left to `nvidia`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plugwright.importers.source import ForeignConfig
from plugwright.importers.values import ConfigValue, ImportNote, parse_flags

__all__ = ["OWN_VARIABLES", "NvidiaSettings", "read_settings"]

_USE_IGNORED = "use-ignored-keys"
_TOP_KEYS = ("version", "flags", "resources", "sharing", "imex")
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
_PLUGIN_KEYS = (
    *("passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath"),
    *("containerDriverRoot", "sharedDevicesAllocationPolicy"),
)
_FLAGS_KEYS = (
    *("migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot", "gdrcopyEnabled", "gdsEnabled"),
    *("mofedEnabled", "deviceDiscoveryStrategy", "useNodeFeatureAPI", "plugin", "gfd"),
)
_BOOLEANS = {"failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "passDeviceSpecs", "required"}
_KUBELET = "use `plugwright run --kubelet-dir` instead"
_HOOKS = "not supported: our CDI specs have no hooks and no feature flags"
_NOT_IMPORTED = {
    "kubelet-socket": _KUBELET,
    "KUBELET_SOCKET": _KUBELET,
    "cdi-feature-flags": _HOOKS,
    "CDI_FEATURE_FLAGS": _HOOKS,
    "cdi-disable-hooks": _HOOKS,
    "CDI_DISABLE_HOOKS": _HOOKS,
}
_IGNORED_FLAGS = {"config-file"}
_GO_BOOLEANS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}

# The variables by which a manifest of NVIDIA's plugin differs from others.
OWN_VARIABLES = frozenset(name for names in _NAMES.values() for name in names if name.isupper())


@dataclass(slots=True)
class NvidiaSettings:
    """The settings by the names of the file's keys, and the notes about them; `top` are the keys of the file itself."""

    top: Mapping[str, ConfigValue] = field(default_factory=dict)
    values: dict[str, ConfigValue] = field(default_factory=dict)
    notes: list[ImportNote] = field(default_factory=list)
    use_ignored: bool = False

    def string(self, name: str, default: str, *choices: str) -> str:
        value = self.values.get(name)
        if value is None or not value.raw:
            return default
        if choices and value.raw not in choices:
            raise value.error(f"must be one of {', '.join(choices)}, got {value.raw!r}")
        return str(value.raw)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None or not value.raw:
            return default
        if value.raw.lower() not in _GO_BOOLEANS:
            raise value.error(f"must be true or false, got {value.raw!r}")
        return _GO_BOOLEANS[value.raw.lower()]

    def strings(self, name: str) -> list[str]:
        """The items of a list, or of a comma-separated string."""
        value = self.values.get(name)
        if value is None:
            return []
        words = [str(item.raw) for item in value.items()] if value.is_list else str(value.raw).split(",")
        return [word.strip() for word in words if word.strip()]

    def note(self, name: str, text: str) -> None:
        """Adds a note about a setting, if it is set."""
        if name in self.values:
            self.notes.append(self.values[name].note(text))


def read_settings(source: ForeignConfig) -> NvidiaSettings:
    settings = NvidiaSettings()
    if source.root is not None:
        settings.top = source.root.fields(_TOP_KEYS, settings.notes)
    version = settings.top.get("version")
    if version is not None and version.raw != "v1":
        raise version.error(f"must be v1 for NVIDIA's plugin, got {version.raw!r}")
    _read_file(settings)
    known = {name: setting for setting, names in _NAMES.items() for name in names}
    _read_environment(settings, source, known)
    _read_flags(settings, source, known)
    return settings


def _read_file(settings: NvidiaSettings) -> None:
    top, notes = settings.top, settings.notes
    flags = top["flags"].fields(_FLAGS_KEYS, notes) if "flags" in top else {}
    if "plugin" in flags:
        flags |= flags.pop("plugin").fields(_PLUGIN_KEYS, notes)
    for name in ("gfd", "useNodeFeatureAPI"):
        if name in flags:
            notes.append(flags.pop(name).note("belongs to GPU feature discovery, which is not replaced; left out"))
    if "imex" in top:
        flags |= top["imex"].fields(("channelIDs", "required"), notes)
    settings.values |= flags


def _read_environment(settings: NvidiaSettings, source: ForeignConfig, known: Mapping[str, str]) -> None:
    for name, value in sorted(source.environment.items()):
        if name in _NOT_IMPORTED:
            settings.notes.append(value.note(f"{name}: {_NOT_IMPORTED[name]}"))
        elif name in known:
            settings.values[known[name]] = value


def _read_flags(settings: NvidiaSettings, source: ForeignConfig, known: Mapping[str, str]) -> None:
    for name, value in parse_flags(source.flags, lambda name: name in known and known[name] not in _BOOLEANS):
        if name in known:
            settings.values[known[name]] = value
        elif name in _NOT_IMPORTED:
            settings.notes.append(value.note(f"--{name}: {_NOT_IMPORTED[name]}"))
        elif name == _USE_IGNORED:
            settings.use_ignored = True
        elif name not in _IGNORED_FLAGS:
            settings.notes.append(value.note(f"unknown flag '--{name}', left out"))
