"""NVIDIA's k8s-device-plugin: its config.yaml (v1), flags and environment variables.

Keys that NVIDIA's plugin parses and then ignores (`resources`, `rename`, `devices`) stay ignored, since they would
rename resources in production; `--use-ignored-keys` among the flags enables them. Reading the settings is left to
`nvidia_settings`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plugwright.importers.nvidia_settings import OWN_VARIABLES, NvidiaSettings, read_settings
from plugwright.importers.source import ForeignConfig, ImportedResource, ImportResult
from plugwright.importers.values import ConfigValue
from plugwright.plugins.nvidia.xids import XIDS, XidAction

__all__ = ["recognises", "translate"]

_PREFIX = "nvidia.com/"
_GPU = f"{_PREFIX}gpu"
_MIG = f"{_PREFIX}mig-"
_IGNORED = "is parsed and then ignored by NVIDIA's plugin, so it is ignored here; `-- --use-ignored-keys` uses it"
_MPS = (
    "the MPS daemons are run by `plugwright mps run` (mps.enabled in the chart); share.mps.mode exclusive sets compute "
    "mode EXCLUSIVE_PROCESS while it runs, as NVIDIA's does: `leave` would leave it alone and confine nobody"
)

Content = dict[str, object]


@dataclass(frozen=True, slots=True)
class _SharedGpus:
    """One resource under `sharing`: its new name, and the sharing of its devices."""

    value: ConfigValue
    name: str  # after renaming
    share: Content
    devices: tuple[str, ...] = ()  # indexes or UUIDs; empty means all


def recognises(source: ForeignConfig) -> bool:
    """By keys and variables that no other plugin has; `version: v1` alone does not suffice."""
    if OWN_VARIABLES & set(source.environment):
        return True
    flags, sharing = _keys_below(source.root, "flags"), _keys_below(source.root, "sharing")
    return bool(sharing & {"timeSlicing", "mps"} or flags & {"migStrategy", "nvidiaDriverRoot", "failOnInitError"})


def translate(source: ForeignConfig) -> ImportResult:
    settings = read_settings(source)
    mig = settings.string("migStrategy", "none", "none", "single", "mixed")
    shared = _shared(settings, mig)
    base = _base(settings)
    resources = [*_whole_gpus(settings, base, mig, shared), *_mig_profiles(settings, base, mig, shared)]
    for name, unused in shared.items():
        settings.notes.append(unused.value.note(f"no resource is named {name}; left out, as by NVIDIA's plugin"))
    _note_differences(settings, [resource.content for resource in resources])
    return ImportResult(tuple(resources), tuple(settings.notes))


def _keys_below(root: ConfigValue | None, part: str) -> set[str]:
    members = dict(root.members()) if root is not None and root.is_mapping else {}
    inner = members.get(part)
    return {key for key, _ in inner.members()} if inner is not None and inner.is_mapping else set()


def _whole_gpus(
    settings: NvidiaSettings, base: Content, mig: str, shared: dict[str, _SharedGpus]
) -> Iterator[ImportedResource]:
    base = {**({"mig": mig} if mig != "none" else {}), **base}
    earlier: list[str] = []
    for name, pattern in _patterns(settings, "gpus") or [(_GPU, "")]:
        select: Content = {"select": {"model": pattern}} if pattern not in ("", "*") else {}
        exclude: Content = {"exclude": {"model": list(earlier)}} if earlier else {}
        earlier.append(pattern)
        yield from _resources({**select, **exclude, **base}, name, shared.pop(name, None))


def _resources(nvidia: Content, name: str, shared: _SharedGpus | None) -> Iterator[ImportedResource]:
    """One resource, or two if only some `devices` are shared."""
    if not shared:
        yield ImportedResource({"name": name, "nvidia": nvidia})
        return
    if not shared.devices:
        yield ImportedResource({"name": shared.name, "nvidia": {**nvidia, "share": shared.share}})
        return
    kind = "uuid" if shared.devices[0].startswith(("GPU-", "MIG-")) else "index"
    picked: Content = {kind: list(shared.devices)}
    yield ImportedResource(
        {"name": shared.name, "nvidia": {**_with_more(nvidia, "select", picked), "share": shared.share}}
    )
    if shared.name == name:
        raise shared.value.error(
            "`devices` needs `rename` or renameByDefault, or the other GPUs would have the same name"
        )
    yield ImportedResource({"name": name, "nvidia": _with_more(nvidia, "exclude", picked)})


def _with_more(nvidia: Content, key: str, more: Content) -> Content:
    before = nvidia.get(key, {})
    assert isinstance(before, dict)
    return {**nvidia, key: {**before, **more}}


def _mig_profiles(
    settings: NvidiaSettings, base: Content, mig: str, shared: dict[str, _SharedGpus]
) -> Iterator[ImportedResource]:
    """With `mixed` every profile is a resource: the named profiles, and one template for the rest."""
    if mig != "mixed":
        return
    named = dict(_patterns(settings, "mig"))
    named |= {name: _profile(name) for name in shared if name.startswith(_MIG) and name not in named}
    for name, profile in named.items():
        nvidia: Content = {"select": {"profile": profile}, "mig": "mixed", **base}
        yield from _resources(nvidia, name, shared.pop(name, None))
    exclude: Content = {"exclude": {"profile": list(named.values())}} if named else {}
    yield ImportedResource({"name": f"{_MIG}{{profile}}", "nvidia": {"mig": "mixed", **exclude, **base}})


def _profile(name: str) -> str:
    """`nvidia.com/mig-1g.10gb.me` is the profile 1g.10gb+me."""
    slices, _, rest = name.removeprefix(_MIG).partition(".")
    size, dot, attribute = rest.partition(".")
    return f"{slices}.{size}{'+' if dot else ''}{attribute}"


def _patterns(settings: NvidiaSettings, kind: str) -> list[tuple[str, str]]:
    """Names and patterns of models or profiles, in order: the first match counts."""
    resources = settings.top.get("resources")
    if resources is None:
        return []
    if not settings.use_ignored:
        if kind == "gpus":
            settings.notes.append(resources.note(_IGNORED))
        return []
    items = resources.fields(("gpus", "mig"), settings.notes).get(kind)
    patterns = []
    for item in items.items() if items is not None else []:
        fields = item.fields(("pattern", "name"), settings.notes)
        if len(fields) != 2:
            raise item.error("must have a pattern and a name")
        patterns.append((_prefixed(fields["name"]), str(fields["pattern"].string())))
    return patterns


def _shared(settings: NvidiaSettings, mig: str) -> dict[str, _SharedGpus]:
    sharing = settings.top.get("sharing")
    if sharing is None:
        return {}
    blocks = sharing.fields(("timeSlicing", "mps"), settings.notes)
    if len(blocks) > 1:
        settings.notes.append(blocks["timeSlicing"].note("ignored: NVIDIA's plugin uses `mps` if both are given"))
    if "mps" in blocks and mig == "mixed":
        raise blocks["mps"].error("must not be combined with migStrategy mixed: NVIDIA's plugin refuses it")
    by, block = ("mps", blocks["mps"]) if "mps" in blocks else ("time-slicing", blocks.get("timeSlicing"))
    return _read_sharing(settings, block, by) if block is not None else {}


def _read_sharing(settings: NvidiaSettings, block: ConfigValue, by: str) -> dict[str, _SharedGpus]:
    fields = block.fields(("renameByDefault", "failRequestsGreaterThanOne", "resources"), settings.notes)
    rename = "renameByDefault" in fields and fields["renameByDefault"].boolean()
    refuse = fields["failRequestsGreaterThanOne"].boolean() if "failRequestsGreaterThanOne" in fields else by == "mps"
    resources = fields["resources"].items() if "resources" in fields else []
    if not resources:
        raise block.error("must have at least one resource")
    return dict(_read_shared(settings, item, rename, {"by": by, "most": int(refuse)}) for item in resources)


def _read_shared(settings: NvidiaSettings, item: ConfigValue, rename: bool, share: Content) -> tuple[str, _SharedGpus]:
    fields = item.fields(("name", "rename", "devices", "replicas"), settings.notes)
    if "name" not in fields or "replicas" not in fields:
        raise item.error("must have a name and replicas")
    replicas = fields["replicas"].integer()
    if replicas < 2:
        raise fields["replicas"].error(f"must be at least 2, got {replicas}")
    name = _prefixed(fields["name"])
    most = share.pop("most") or (replicas if share["by"] == "mps" else 0)
    content = {**share, "replicas": replicas, **({"most": most} if most else {})}
    if share["by"] == "mps":
        content["mps"] = {"mode": "exclusive"}  # as NVIDIA's daemon sets it
    new = f"{name}.shared" if rename else name
    for key in ("rename", "devices"):
        if key in fields and not settings.use_ignored and fields[key].raw != "all":
            settings.notes.append(fields[key].note(_IGNORED))
    if not settings.use_ignored:
        return name, _SharedGpus(item, new, content)
    new = _prefixed(fields["rename"]) if "rename" in fields else new
    return name, _SharedGpus(item, new, content, _devices(fields.get("devices")))


def _devices(value: ConfigValue | None) -> tuple[str, ...]:
    if value is None or value.raw == "all":
        return ()
    if value.is_list:
        return tuple(str(item.raw) for item in value.items())
    return tuple(map(str, range(int(value.integer()))))


def _prefixed(value: ConfigValue) -> str:
    name = str(value.string())
    return name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"


def _base(settings: NvidiaSettings) -> Content:
    base: Content = {"strategy": _strategy(settings)}
    if settings.string("deviceIDStrategy", "uuid", "uuid", "index") == "index":
        base["ids"] = "index"
    if settings.string("sharedDevicesAllocationPolicy", "distributed", "distributed", "packed") == "packed":
        base["prefer"] = "packed"
    for key, ours in (("gdrcopyEnabled", "gdrcopy"), ("gdsEnabled", "gds"), ("mofedEnabled", "mofed")):
        if settings.boolean(key):
            base[ours] = True
    parts = {"driver": _driver(settings), "cdi": _cdi(settings), "imex": _imex(settings), "health": _health(settings)}
    return {**base, **{key: part for key, part in parts.items() if part}}


def _strategy(settings: NvidiaSettings) -> str | list[str]:
    known = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    chosen = settings.strings("deviceListStrategy") or ["envvar"]
    for strategy in chosen:
        if strategy not in known:
            value = settings.values["deviceListStrategy"]
            raise value.error(f"must be one of {', '.join(known)}, got {strategy!r}")
    if settings.boolean("passDeviceSpecs") and not all(strategy.startswith("cdi-") for strategy in chosen):
        chosen = ["device-nodes", *chosen]
    return chosen if len(chosen) > 1 else chosen[0]


def _driver(settings: NvidiaSettings) -> Content:
    host = settings.string("nvidiaDriverRoot", "/")
    dev = settings.string("nvidiaDevRoot", host)
    if host == dev == "/":
        return {}
    root = settings.string("containerDriverRoot", "/driver-root")
    nodes = f"; its device nodes at {dev}/dev, as on the host" if dev != "/" else ""
    settings.note("nvidiaDriverRoot", f"must be mounted into our container at {root}, as into NVIDIA's{nodes}")
    return {"root": root, "host": host, **({"dev": dev} if dev != "/" else {})}


def _cdi(settings: NvidiaSettings) -> Content:
    prefix, hooks = settings.string("cdiAnnotationPrefix", "cdi.k8s.io/"), settings.string("nvidiaCTKPath", "")
    return {
        **({"hooks": hooks} if hooks else {}),
        **({"annotations": prefix} if prefix != "cdi.k8s.io/" else {}),
    }


def _imex(settings: NvidiaSettings) -> Content:
    channels = settings.strings("channelIDs")
    if channels not in ([], ["0"]):
        raise settings.values["channelIDs"].error(f"must be [] or [0], got {channels}")
    required = settings.boolean("required")
    return {"channels": [0], **({"required": True} if required else {})} if channels else {}


def _health(settings: NvidiaSettings) -> Content:
    disabled, enabled = settings.strings("disableHealthChecks"), settings.strings("enableHealthChecks")
    if {"all", "xids"} & set(disabled):
        if enabled:
            settings.note(
                "enableHealthChecks", "ignored, as by NVIDIA's plugin: disableHealthChecks has 'all' or 'xids'"
            )
        return {"checks": False}
    xids = dict.fromkeys(_codes(settings, "disableHealthChecks", disabled), XidAction.IGNORE.value)
    # Xids that our default does not ignore keep the action of NVIDIA's catalogue.
    enabled_codes = _codes(settings, "enableHealthChecks", enabled)
    ignored = {xid.code for xid in XIDS.values() if xid.action is XidAction.IGNORE}
    xids |= {code: XidAction.QUIET.value for code in enabled_codes if int(code) in ignored}
    if "all" in enabled:
        settings.note("enableHealthChecks", "'all' is left out: every Xid is handled as NVIDIA's catalogue says")
    return {"xids": dict(sorted(xids.items(), key=lambda rule: int(rule[0])))} if xids else {}


def _codes(settings: NvidiaSettings, name: str, words: list[str]) -> list[str]:
    for word in words:
        if not word.isdecimal() and word != "all":
            settings.note(name, f"{word!r} is not an Xid, left out")
    return [word for word in words if word.isdecimal()]


def _note_differences(settings: NvidiaSettings, contents: list[Content]) -> None:
    if settings.string("deviceDiscoveryStrategy", "auto", "auto", "nvml", "tegra") == "tegra":
        settings.note("deviceDiscoveryStrategy", "GPUs without NVML, as on Jetson, are not supported")
    if settings.boolean("failOnInitError"):
        settings.note(
            "failOnInitError",
            "plugwright does not exit: it logs the error, waits, and serves GPUs when the driver is loaded",
        )
    if any("'by': 'mps'" in str(content) for content in contents):
        settings.notes.append(settings.top["sharing"].note(_MPS))
        settings.note("mpsRoot", "ignored: the directory is share.mps.root, by default /run/plugwright/mps")
