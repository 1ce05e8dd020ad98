"""The plugins that the operator's file asks for, for NVIDIA GPUs.

Those of one file share what watches the machine, so that it is watched once and each device is offered once. Loaded
only where there are such resources: a node without GPUs does not pay for it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from plugwright.config import nvidia
from plugwright.config.nvidia import NvidiaEntry, NvidiaHealth, NvidiaMps, NvidiaPattern, NvidiaShare, NvidiaVgpu
from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.config import Features, Options, Places
from plugwright.plugins.nvidia.driver import Driver
from plugwright.plugins.nvidia.health import Action, Rules
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.mps.plan import MpsOptions, most_clients
from plugwright.plugins.nvidia.mps.sharing import Mps
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.selection import Mig, Pattern, Selection, chosen, overlaps
from plugwright.plugins.nvidia.sharing import By, Share, SharingBackend, TimeSlicing
from plugwright.plugins.nvidia.simulated_machines import load
from plugwright.plugins.nvidia.simulation import Simulation
from plugwright.plugins.nvidia.vgpu import Vgpu, VgpuOptions
from plugwright.sdk import cdi
from plugwright.sdk.families import byte_size
from plugwright.sdk.plugin import Plugin

__all__ = ["check", "driver_of", "isolation_of", "joined", "members", "options_of", "plugin", "watch", "watches_of"]

# How devices are called: whoever is called otherwise would be looked for in vain, without a word.
_INDEX = re.compile(r"[0-9]+(?::[0-9]+)?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")
_PCI = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_ANNOTATIONS = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]*")


def options_of(entry: NvidiaEntry) -> Options:
    """What the plugin is told; ConfigError where the keys do not go together."""
    strategies = entry.strategy if isinstance(entry.strategy, list) else [entry.strategy]
    if not strategies:
        raise ConfigError("strategy: a container needs at least one way to get its GPUs")
    return Options(
        selection=_selection(entry),
        share=_share(entry.share) if entry.share else None,
        strategies=tuple(dict.fromkeys(strategies)),
        ids=entry.ids,
        confine=entry.confine == "cdi",
        packed=packed(entry),
        write_specs=entry.cdi.write,
        annotation_prefix=entry.cdi.annotations,
        features=_features(entry),
        places=_places(entry),
        rules=_rules(entry.health),
    )


def _selection(entry: NvidiaEntry) -> Selection:
    include, exclude = _pattern(entry.select), _pattern(entry.exclude)
    if (include.profile or exclude.profile) and entry.mig is Mig.NONE:
        raise ConfigError("a MIG profile is selected with `mig: mixed` or `mig: single`")
    return Selection(include=include, exclude=exclude, mig=entry.mig)


def _pattern(entry: NvidiaPattern) -> Pattern:
    return Pattern(
        index=_called("an index looks like 0, or 0:1 for a MIG device", _INDEX, _texts(entry.index)),
        uuid=_called("a UUID begins with GPU- or MIG-", _UUID, _texts(entry.uuid)),
        pci=_called("a PCI address looks like 0000:3b:00.0", _PCI, _texts(entry.pci)),
        model=_texts(entry.model),
        profile=_texts(entry.profile),
        least=byte_size(entry.least),
        most=byte_size(entry.most),
    )


def _texts(values: int | str | Iterable[int | str]) -> tuple[str, ...]:
    return tuple(map(str, [values] if isinstance(values, int | str) else values))


def _called(rule: str, pattern: re.Pattern[str], names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not pattern.fullmatch(name):
            raise ConfigError(f"{rule}, not {name!r}")
    return names


def _share(entry: NvidiaShare) -> Share:
    return Share(
        by=entry.by,
        replicas=entry.replicas,
        memory=byte_size(entry.memory),
        percent=entry.percent,
        most=entry.most,
    )


def _features(entry: NvidiaEntry) -> Features:
    return Features(
        gdrcopy=entry.gdrcopy,
        gds=entry.gds,
        mofed=entry.mofed,
        imex=tuple(sorted(set(entry.imex.channels))),
        imex_required=entry.imex.required,
    )


def _places(entry: NvidiaEntry) -> Places:
    driver = entry.driver
    for path in (driver.root, driver.host or "/", driver.dev or "/", entry.cdi.dir, *driver.libraries):
        if not path.startswith("/"):
            raise ConfigError(f"a directory is an absolute path, not {path!r}")
    cdi.qualified_name(f"{entry.cdi.vendor}/gpu", "0")  # raises where CDI does not allow such a vendor
    _called("a prefix of annotations looks like cdi.k8s.io/", _ANNOTATIONS, (entry.cdi.annotations,))
    return Places(
        root=Path(driver.root),
        host_root=Path(driver.host or driver.root),
        dev_root=Path(driver.dev or "/"),
        cdi=Path(entry.cdi.dir),
        libraries=tuple(driver.libraries),
        vendor=entry.cdi.vendor,
    )


def _rules(entry: NvidiaHealth) -> Rules:
    return Rules(
        xids=_xids(entry.xids),
        other=entry.other,
        quiet=entry.quiet,
        ecc=entry.ecc,
        pending=entry.pending,
        unwatched=entry.unwatched,
        off=not entry.checks,
    )


def _xids(entries: Mapping[str, Action]) -> dict[int, Action]:
    for code in entries:
        if not code.isdecimal():
            raise ConfigError(f"xids names its codes in quotes, as in '94': reset, not {code!r}")
    return {int(code): action for code, action in entries.items()}


def plugin(resource: str, entry: NvidiaEntry) -> Nvidia:
    options = options_of(entry)
    return Nvidia(resource, options, watch(entry), isolation_of(resource, entry, options))


def isolation_of(resource: str, entry: NvidiaEntry, options: Options) -> SharingBackend:
    """How the tenants of one device are kept apart."""
    if entry.share is None or options.share is None:
        return TimeSlicing(resource, None)
    check_sharing(resource, entry)
    match options.share.by:
        case By.MPS:
            return Mps(resource, options.share, mps_options(entry.share))
        case By.VGPU:
            return Vgpu(resource, options.share, vgpu_options(entry.share))
        case By.TIME_SLICING:
            return TimeSlicing(resource, options.share)


def joined(plugins: Sequence[Plugin], watches: Sequence[GpuMonitor]) -> list[Plugin]:
    """The same plugins, those of one machine with one watch: one of `watches`, which may be in use, or the first's."""
    known = {watch.driver.name: watch for watch in watches}
    for each in plugins:
        if isinstance(each, Nvidia):
            shared = known.setdefault(each.watch.driver.name, each.watch)
            if shared is not each.watch:
                shared.pace = replace(shared.pace, rescan=min(shared.pace.rescan, each.watch.pace.rescan))
                each.watch = shared
    return list(plugins)


def watches_of(plugins: Iterable[Plugin]) -> list[GpuMonitor]:
    return [each.watch for each in plugins if isinstance(each, Nvidia)]


def members(name: str, family: NvidiaEntry, watch: GpuMonitor) -> dict[str, NvidiaEntry]:
    """The resources that a family stands for on this machine, by their names."""
    gpus = watch.view.reading.gpus if watch.view else ()
    found = {}
    for unit in chosen(gpus, options_of(family).selection):
        model, profile = unit.gpu.model, unit.mig.profile if unit.mig else ""
        select = msgspec.structs.replace(
            family.select,
            model=_literal(model) if "{model}" in name else family.select.model,
            profile=_literal(profile) if "{profile}" in name else family.select.profile,
        )
        found[nvidia.name_of(name, model, profile)] = msgspec.structs.replace(family, select=select)
    return found


def _literal(text: str) -> str:
    """A pattern for this very text."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def check(name: str, entry: NvidiaEntry, others: Mapping[str, NvidiaEntry]) -> None:
    """Refuses devices that another resource asks for, as far as that can be known without the machine."""
    machine = (entry.simulate, entry.driver.root)
    known = {
        other: options_of(nvidia.whole_family(other, asked)).selection
        for other, asked in others.items()
        if (asked.simulate, asked.driver.root) == machine
    }
    _check_one(name, entry, known)


def _check_one(name: str, entry: NvidiaEntry, known: dict[str, Selection]) -> None:
    """`known`: what other resources of the same machine ask for; this one's is added."""
    options = options_of(nvidia.whole_family(name, entry))
    for other in [other for other, asked in known.items() if asked == options.selection]:
        raise ConfigError(f"asks for the same devices as {other}")
    known[name] = options.selection
    if not entry.simulate:
        return
    gpus = load(entry.simulate).gpus
    for uuid, askers in overlaps(gpus, known).items():
        raise ConfigError(f"{uuid} is asked for by {' and '.join(askers)}")
    whole = chosen(gpus, options.selection) if entry.share else []
    if whole and not isolation_of(name, entry, options).units(whole):  # raises where there are too many
        raise ConfigError("no device is large enough for a single share of it")


def driver_of(entry: NvidiaEntry) -> Driver:
    return Simulation(entry.simulate) if entry.simulate else Nvml(Path(entry.driver.root))


def watch(entry: NvidiaEntry) -> GpuMonitor:
    return GpuMonitor(driver_of(entry), PollIntervals(rescan=entry.rescan))


_NEWEST = (99, 0)  # the compute capability that no GPU surpasses


def check_sharing(resource: str, entry: NvidiaEntry) -> None:
    """What does not go together is said before there is a GPU."""
    share = entry.share
    if share is None:
        return
    if share.by is By.MPS and nvidia.is_family(resource):
        raise ConfigError("a resource that is shared by MPS has its name written out: its daemon goes by it")
    for by in (By.MPS, By.VGPU):
        if getattr(share, by.value) is not None and share.by is not by:
            raise ConfigError(f"share: `{by}` is for `by: {by}`, and this is by {share.by}")
        if share.by is by and entry.mig is not Mig.NONE:
            raise ConfigError(f"share by {by} is for whole GPUs: not with `mig: {entry.mig}`")
    if share.by is By.MPS and share.replicas > most_clients(_NEWEST):
        raise ConfigError(f"an MPS daemon serves {most_clients(_NEWEST)} clients: replicas is not {share.replicas}")


def packed(entry: NvidiaEntry) -> bool:
    """Several units of one GPU are one larger share where shares have a size; else they are several small ones."""
    if entry.prefer or entry.share is None:
        return entry.prefer == "packed"
    return entry.share.by is By.VGPU or (entry.share.by is By.MPS and entry.share.most > 1)


def mps_options(share: NvidiaShare) -> MpsOptions:
    entry = share.mps or NvidiaMps()
    return MpsOptions(
        root=Path(entry.root),
        shm=Path(entry.shm) if entry.shm else None,
        mode=entry.mode,
        clients=entry.clients,
    )


def vgpu_options(share: NvidiaShare) -> VgpuOptions:
    entry = share.vgpu or NvidiaVgpu()
    return VgpuOptions(
        library=Path(entry.library),
        root=Path(entry.root),
        locks=Path(entry.locks),
        cores=entry.cores,
        log_level=entry.log,
    )
