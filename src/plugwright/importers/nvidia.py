"""NVIDIA's k8s-device-plugin: its config.yaml (v1), flags and environment variables in our words.

Keys that the peer parses and then throws away (`resources`, `rename`, `devices`) stay ignored, since they would rename
resources in production; `--use-ignored-keys` among the flags switches them on. What was said where is gathered by
`nvidia_settings`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plugwright.importers.nvidia_settings import OWN_VARIABLES, Settings, gather
from plugwright.importers.source import Entry, Imported, Source, Value
from plugwright.plugins.nvidia.xids import XIDS, XidAction

__all__ = ["recognises", "translate"]

_PREFIX = "nvidia.com/"
_GPU = f"{_PREFIX}gpu"
_MIG = f"{_PREFIX}mig-"
_IGNORED = "is parsed and then ignored by NVIDIA's plugin, and so here; `-- --use-ignored-keys` uses it"
_MPS = (
    "the MPS daemon is `plugwright mps run` (mps.enabled in the chart); it leaves the compute mode alone unless "
    "share.mps.mode is exclusive"
)

Content = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Shared:
    """One resource under `sharing`: what becomes of the devices that had this name."""

    value: Value
    name: str  # the new one
    share: Content
    devices: tuple[str, ...] = ()  # indexes and UUIDs; none: all


def recognises(source: Source) -> bool:
    """Its keys and variables are its own; `version: v1` alone says nothing."""
    if OWN_VARIABLES & set(source.environment):
        return True
    flags, sharing = _keys(source.root, "flags"), _keys(source.root, "sharing")
    return bool(sharing & {"timeSlicing", "mps"} or flags & {"migStrategy", "nvidiaDriverRoot", "failOnInitError"})


def translate(source: Source) -> Imported:
    settings = gather(source)
    mig = settings.text("migStrategy", "none", "none", "single", "mixed")
    shared = _shared(settings, mig)
    base = _base(settings)
    entries = [*_whole(settings, base, mig, shared), *_profiles(settings, base, mig, shared)]
    for name, each in shared.items():
        settings.notes.append(each.value.note(f"no device is called {name} here: left out, as NVIDIA's plugin does"))
    _say_what_differs(settings, [entry.content for entry in entries])
    return Imported(tuple(entries), tuple(settings.notes))


def _keys(root: Value | None, part: str) -> set[str]:
    """The keys below one of the file's own."""
    members = dict(root.members()) if root is not None and root.is_mapping else {}
    inner = members.get(part)
    return {key for key, _ in inner.members()} if inner is not None and inner.is_mapping else set()


# Whole GPUs, and MIG devices by their profile.


def _whole(settings: Settings, base: Content, mig: str, shared: dict[str, _Shared]) -> Iterator[Entry]:
    base = {**({"mig": mig} if mig != "none" else {}), **base}
    seen: list[str] = []
    for name, pattern in _patterns(settings, "gpus") or [(_GPU, "")]:
        select: Content = {"select": {"model": pattern}} if pattern not in ("", "*") else {}
        exclude: Content = {"exclude": {"model": list(seen)}} if seen else {}
        seen.append(pattern)
        nvidia, each = {**select, **exclude, **base}, shared.pop(name, None)
        yield from _cut(nvidia, name, each) if each else [Entry({"name": name, "nvidia": nvidia})]


def _cut(nvidia: Content, name: str, shared: _Shared) -> Iterator[Entry]:
    """The devices that are shared, and those that are not, if `devices` names some."""
    if not shared.devices:
        yield Entry({"name": shared.name, "nvidia": {**nvidia, "share": shared.share}})
        return
    kind = "uuid" if shared.devices[0].startswith(("GPU-", "MIG-")) else "index"
    picked: Content = {kind: list(shared.devices)}
    yield Entry({"name": shared.name, "nvidia": {**_also(nvidia, "select", picked), "share": shared.share}})
    if shared.name == name:
        raise shared.value.error("`devices` needs `rename` or renameByDefault: the others would have the same name")
    yield Entry({"name": name, "nvidia": _also(nvidia, "exclude", picked)})


def _also(nvidia: Content, key: str, more: Content) -> Content:
    """With more to select or exclude than there was."""
    before = nvidia.get(key, {})
    assert isinstance(before, dict)
    return {**nvidia, key: {**before, **more}}


def _profiles(settings: Settings, base: Content, mig: str, shared: dict[str, _Shared]) -> Iterator[Entry]:
    """With `mixed` each profile is a resource: those that are named, and whichever else a node turns out to have."""
    if mig != "mixed":
        return
    named = dict(_patterns(settings, "mig"))
    named |= {name: _profile(name) for name in shared if name.startswith(_MIG) and name not in named}
    for name, profile in named.items():
        nvidia: Content = {"select": {"profile": profile}, "mig": "mixed", **base}
        each = shared.pop(name, None)
        yield from _cut(nvidia, name, each) if each else [Entry({"name": name, "nvidia": nvidia})]
    exclude: Content = {"exclude": {"profile": list(named.values())}} if named else {}
    yield Entry({"name": f"{_MIG}{{profile}}", "nvidia": {"mig": "mixed", **exclude, **base}})


def _profile(name: str) -> str:
    """`nvidia.com/mig-1g.10gb.me` is the profile 1g.10gb+me."""
    slices, _, rest = name.removeprefix(_MIG).partition(".")
    size, dot, attribute = rest.partition(".")
    return f"{slices}.{size}{'+' if dot else ''}{attribute}"


def _patterns(settings: Settings, kind: str) -> list[tuple[str, str]]:
    """Names by model or profile, in order: the first that fits counts."""
    resources = settings.top.get("resources")
    if resources is None:
        return []
    if not settings.use_ignored:
        if kind == "gpus":
            settings.notes.append(resources.note(_IGNORED))
        return []
    items = resources.fields(("gpus", "mig"), settings.notes).get(kind)
    found = []
    for item in items.items() if items is not None else []:
        fields = item.fields(("pattern", "name"), settings.notes)
        if len(fields) != 2:
            raise item.error("a resource has a pattern and a name")
        found.append((_prefixed(fields["name"]), str(fields["pattern"].text())))
    return found


# Sharing.


def _shared(settings: Settings, mig: str) -> dict[str, _Shared]:
    sharing = settings.top.get("sharing")
    if sharing is None:
        return {}
    blocks = sharing.fields(("timeSlicing", "mps"), settings.notes)
    if len(blocks) > 1:
        settings.notes.append(blocks["timeSlicing"].note("not used: with NVIDIA's plugin `mps` beside it wins"))
    if "mps" in blocks and mig == "mixed":
        raise blocks["mps"].error("NVIDIA's plugin refuses MPS with the MIG strategy mixed")
    by, block = ("mps", blocks["mps"]) if "mps" in blocks else ("time-slicing", blocks.get("timeSlicing"))
    return _block(settings, block, by) if block is not None else {}


def _block(settings: Settings, block: Value, by: str) -> dict[str, _Shared]:
    fields = block.fields(("renameByDefault", "failRequestsGreaterThanOne", "resources"), settings.notes)
    rename = "renameByDefault" in fields and fields["renameByDefault"].switch()
    refuse = fields["failRequestsGreaterThanOne"].switch() if "failRequestsGreaterThanOne" in fields else by == "mps"
    resources = fields["resources"].items() if "resources" in fields else []
    if not resources:
        raise block.error("NVIDIA's plugin wants at least one resource here")
    shares = [_one(settings, each, rename, {"by": by, "most": int(refuse)}) for each in resources]
    return dict(shares)


def _one(settings: Settings, item: Value, rename: bool, share: Content) -> tuple[str, _Shared]:
    fields = item.fields(("name", "rename", "devices", "replicas"), settings.notes)
    if "name" not in fields or "replicas" not in fields:
        raise item.error("a shared resource has a name and replicas")
    replicas = fields["replicas"].whole()
    if replicas < 2:
        raise fields["replicas"].error(f"NVIDIA's plugin wants at least 2 replicas, not {replicas}")
    name = _prefixed(fields["name"])
    most = share.pop("most") or (replicas if share["by"] == "mps" else 0)
    made = {**share, "replicas": replicas, **({"most": most} if most else {})}
    new = f"{name}.shared" if rename else name
    for key in ("rename", "devices"):
        if key in fields and not settings.use_ignored and fields[key].raw != "all":
            settings.notes.append(fields[key].note(_IGNORED))
    if not settings.use_ignored:
        return name, _Shared(item, new, made)
    new = _prefixed(fields["rename"]) if "rename" in fields else new
    return name, _Shared(item, new, made, _devices(fields.get("devices")))


def _devices(value: Value | None) -> tuple[str, ...]:
    if value is None or value.raw == "all":
        return ()
    if value.is_list:
        return tuple(str(each.raw) for each in value.items())
    return tuple(map(str, range(int(value.whole()))))


def _prefixed(value: Value) -> str:
    name = str(value.text())
    return name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"


# What all resources have.


def _base(settings: Settings) -> Content:
    base: Content = {"strategy": _strategy(settings)}
    if settings.text("deviceIDStrategy", "uuid", "uuid", "index") == "index":
        base["ids"] = "index"
    if settings.text("sharedDevicesAllocationPolicy", "distributed", "distributed", "packed") == "packed":
        base["prefer"] = "packed"
    for key, ours in (("gdrcopyEnabled", "gdrcopy"), ("gdsEnabled", "gds"), ("mofedEnabled", "mofed")):
        if settings.switch(key):
            base[ours] = True
    parts = {"driver": _driver(settings), "cdi": _cdi(settings), "imex": _imex(settings), "health": _health(settings)}
    return {**base, **{key: part for key, part in parts.items() if part}}


def _strategy(settings: Settings) -> str | list[str]:
    known = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    chosen = settings.texts("deviceListStrategy") or ["envvar"]
    for each in chosen:
        if each not in known:
            raise settings.found["deviceListStrategy"].error(f"NVIDIA's plugin takes {', '.join(known)}, not {each!r}")
    if settings.switch("passDeviceSpecs") and not all(each.startswith("cdi-") for each in chosen):
        chosen = ["device-nodes", *chosen]
    return chosen if len(chosen) > 1 else chosen[0]


def _driver(settings: Settings) -> Content:
    host = settings.text("nvidiaDriverRoot", "/")
    dev = settings.text("nvidiaDevRoot", host)
    if host == dev == "/":
        return {}
    seen = settings.text("containerDriverRoot", "/driver-root")
    nodes = f"; its device nodes at {dev}/dev, as on the host" if dev != "/" else ""
    settings.note("nvidiaDriverRoot", f"must be mounted into our container at {seen}, as into NVIDIA's{nodes}")
    return {"root": seen, "host": host, **({"dev": dev} if dev != "/" else {})}


def _cdi(settings: Settings) -> Content:
    prefix = settings.text("cdiAnnotationPrefix", "cdi.k8s.io/")
    return {"annotations": prefix} if prefix != "cdi.k8s.io/" else {}


def _imex(settings: Settings) -> Content:
    channels = settings.texts("channelIDs")
    if channels not in ([], ["0"]):
        raise settings.found["channelIDs"].error(f"NVIDIA's plugin takes [] or [0], not {channels}")
    required = settings.switch("required")
    return {"channels": [0], **({"required": True} if required else {})} if channels else {}


def _health(settings: Settings) -> Content:
    disabled, enabled = settings.texts("disableHealthChecks"), settings.texts("enableHealthChecks")
    if {"all", "xids"} & set(disabled):
        if enabled:
            settings.note("enableHealthChecks", "has no effect beside a list with 'all' in it, as with NVIDIA's plugin")
        return {"checks": False}
    xids = dict.fromkeys(_codes(settings, "disableHealthChecks", disabled), XidAction.IGNORE.value)
    # Those that count for us anyway keep the action that NVIDIA's catalogue asks for.
    asked = _codes(settings, "enableHealthChecks", enabled)
    ignored = {xid.code for xid in XIDS.values() if xid.action is XidAction.IGNORE}
    xids |= {code: XidAction.QUIET.value for code in asked if int(code) in ignored}
    if "all" in enabled:
        settings.note("enableHealthChecks", "'all' is left out: every Xid is judged by NVIDIA's catalogue")
    return {"xids": dict(sorted(xids.items(), key=lambda each: int(each[0])))} if xids else {}


def _codes(settings: Settings, name: str, words: list[str]) -> list[str]:
    for word in words:
        if not word.isdecimal() and word != "all":
            settings.note(name, f"{word!r} is no Xid, left out")
    return [word for word in words if word.isdecimal()]


# What its user should know.


def _say_what_differs(settings: Settings, contents: list[Content]) -> None:
    if settings.text("deviceDiscoveryStrategy", "auto", "auto", "nvml", "tegra") == "tegra":
        settings.note("deviceDiscoveryStrategy", "GPUs without NVML, as on Jetson, are not found by plugwright")
    if settings.switch("failOnInitError"):
        settings.note(
            "failOnInitError", "plugwright does not exit: it says why, waits, and serves when the driver is there"
        )
    settings.note("nvidiaCTKPath", "not used: our CDI specs have no hooks")
    if any("'by': 'mps'" in str(content) for content in contents):
        settings.notes.append(settings.top["sharing"].note(_MPS))
        settings.note("mpsRoot", "not used: the directory is share.mps.root, /run/plugwright/mps unless said otherwise")
