"""The device family of NVIDIA GPUs: makes a plugin from the key `nvidia` of a resource.

Plugins of one machine share one monitor, which reads it once and finds devices selected by two resources. A
resource name can be a template, such as `nvidia.com/mig-{profile}`: the machine decides which resources result. The
simulation is imported only if a resource has `simulate`.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia import config as nvidia_config
from plugwright.plugins.nvidia import selection
from plugwright.plugins.nvidia.config import (
    HAMI_LIBRARY,
    DeviceListStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaVgpu,
    SharingStrategy,
    VgpuLibrary,
)
from plugwright.plugins.nvidia.driver import Gpu, GpuDriver
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import ClaimedNvidia, Nvidia
from plugwright.plugins.nvidia.sharing import SharingBackend
from plugwright.plugins.nvidia.time_slicing import TimeSlicing
from plugwright.sdk.device_family import (
    DeviceFamily,
    FamilyContext,
    NameTemplates,
    ResourceEntry,
)
from plugwright.sdk.host_mounts import FromSettings, HostMount, When
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["FAMILY", "NvidiaFamily", "NvidiaNameTemplates", "driver_for", "resource_name"]

logger = logging.getLogger(__name__)

_NEWEST_CAPABILITY = (99, 0)  # higher than that of every GPU


_STRATEGY = FromSettings(("nvidia.strategy",))
_WRITES_CDI = When(_STRATEGY, one_of=tuple(strategy.value for strategy in DeviceListStrategy if strategy.is_cdi))
_IS_VGPU = When(FromSettings(("nvidia.share.by",)), one_of=(SharingStrategy.VGPU.value,))
_IS_HAMI = When(FromSettings(("nvidia.share.library",)), one_of=(VgpuLibrary.HAMI.value,))
_HAS_DRIVER = When(FromSettings(("nvidia.simulate",)), one_of=("",))
_DRIVER_ROOT = FromSettings(("nvidia.driver.root",), "/")
_DRIVER_ON_HOST = FromSettings(("nvidia.driver.host", "nvidia.driver.root"), "/")
# With the driver at `/`, NVIDIA's runtime provides its files. A containerised driver can be mounted later.
_OWN_ROOT = When(_DRIVER_ROOT, none_of=("/",))
_MOUNTS = (
    HostMount(path="/dev", when=(_HAS_DRIVER,), unless_runtime_class=True),
    HostMount(
        path=_DRIVER_ON_HOST,
        at=_DRIVER_ROOT,
        when=(_HAS_DRIVER, _OWN_ROOT, When(_DRIVER_ON_HOST, none_of=("/",))),
        mounts=True,
    ),
    HostMount(
        path="/usr",
        at=FromSettings(_DRIVER_ROOT.settings, suffix="/usr"),
        when=(_HAS_DRIVER, _OWN_ROOT, When(_DRIVER_ON_HOST, one_of=("/",))),
    ),
    HostMount(path=FromSettings(("nvidia.cdi.dir",), NvidiaCdi().dir), when=(_WRITES_CDI,), written=True),
    HostMount(
        path=FromSettings(("nvidia.cdi.programs",), NvidiaCdi().programs),
        unless_below=(NvidiaCdi().programs,),  # in the state directory, which is always mounted
        when=(_WRITES_CDI,),
        written=True,
    ),
    HostMount(path=FromSettings(("nvidia.share.vgpu.root",), NvidiaVgpu().root), when=(_IS_VGPU,), written=True),
    HostMount(
        path=FromSettings(("nvidia.share.vgpu.library",), HAMI_LIBRARY, part="parent"), when=(_IS_VGPU, _IS_HAMI)
    ),
    HostMount(path=FromSettings(("nvidia.share.vgpu.locks",)), when=(_IS_VGPU, _IS_HAMI), written=True),
    HostMount(path=FromSettings(("nvidia.labels",)), written=True),
)


class NvidiaFamily(DeviceFamily[NvidiaConfig]):
    settings = NvidiaConfig
    extras = ("nvidia",)
    mounts = _MOUNTS
    placeholders: ClassVar = {"model": "model", "profile": "1g.10gb"}

    def plugin(self, entry: ResourceEntry[NvidiaConfig], context: FamilyContext) -> Nvidia:
        nvidia_config.check(entry.settings)
        nvidia_config.check_api(entry.settings, entry.serve.api)
        is_shared_by_claims = entry.settings.share is not None and entry.serve.api is ServeMode.DRA
        kind = ClaimedNvidia if is_shared_by_claims else Nvidia
        return kind(entry.name, entry.settings, _monitor(entry.settings), _sharing(entry))

    def check(self, entry: ResourceEntry[NvidiaConfig], earlier: Sequence[ResourceEntry[NvidiaConfig]]) -> None:
        """Rejects devices selected by two resources, as far as they are known without the machine.

        Also rejects CDI specs with different content from two resources: the last writer would win.
        """
        for other in earlier:
            _check_specs(entry, other)
        machine = (entry.settings.simulate, entry.settings.driver.root)
        selections = {
            other.name: selection.from_config(_template_settings(other))
            for other in earlier
            if (other.settings.simulate, other.settings.driver.root) == machine
        }
        own = selection.from_config(_template_settings(entry))
        for name, selected in selections.items():
            if selected == own:
                raise ConfigError(f"selects the same devices as {name}")
        if entry.settings.simulate:
            self._check_machine(entry, {**selections, entry.name: own})

    def join(self, plugins: Sequence[Plugin], serving: Collection[Plugin]) -> None:
        """Gives plugins of one machine one monitor, if possible that of a serving plugin."""
        _share_monitors(plugins, [plugin.monitor for plugin in serving if isinstance(plugin, Nvidia)])

    def redirected(self, entry: ResourceEntry[NvidiaConfig], directory: Path) -> ResourceEntry[NvidiaConfig]:
        """The redirected settings; the state of an MPS daemon is only read."""
        settings = entry.settings
        moved = msgspec.structs.replace(
            settings.cdi, dir=f"{directory}{settings.cdi.dir}", programs=f"{directory}{settings.cdi.programs}"
        )
        labels = f"{directory}{settings.labels}" if settings.labels else ""
        settings = msgspec.structs.replace(settings, cdi=moved, labels=labels)
        if settings.share is not None and settings.share.by is SharingStrategy.VGPU:
            vgpu = settings.share.vgpu or NvidiaVgpu()
            locks = vgpu.locks and f"{directory}{vgpu.locks}"
            vgpu = msgspec.structs.replace(vgpu, root=f"{directory}{vgpu.root}", locks=locks)
            settings = msgspec.structs.replace(settings, share=msgspec.structs.replace(settings.share, vgpu=vgpu))
        return replace(entry, settings=settings)

    def name_templates(self) -> NameTemplates[NvidiaConfig]:
        return NvidiaNameTemplates()

    def _check_machine(self, entry: ResourceEntry[NvidiaConfig], selections: Mapping[str, selection.Selection]) -> None:
        from plugwright.plugins.nvidia import simulated_machines

        gpus = simulated_machines.load(entry.settings.simulate).gpus
        for uuid, resources in selection.overlaps(gpus, selections).items():
            raise ConfigError(f"{uuid} is selected by {' and '.join(resources)}: a device can be in one resource only")
        whole = selection.select_devices(gpus, selections[entry.name]) if entry.settings.share else []
        backend = _sharing(entry)
        # `units` raises if the list would be too long for the kubelet.
        offered = backend.claimable if entry.serve.api is ServeMode.DRA else backend.units
        if whole and not offered(whole):
            raise ConfigError("no device is large enough for one share")


class NvidiaNameTemplates:
    """The resources of templates, over all versions of a daemon's file."""

    def __init__(self, monitors: Mapping[str, GpuMonitor] | None = None) -> None:
        self._monitors = dict(monitors or {})  # by the names of their drivers

    def members(self, entry: ResourceEntry[NvidiaConfig]) -> Mapping[str, NvidiaConfig]:
        settings = _template_settings(entry)
        new = _monitor(settings)
        monitor = self._monitors.setdefault(new.driver.name, new)
        return _members(entry.name, settings, monitor.views.value.snapshot.gpus)

    def join(self, plugins: Sequence[Plugin]) -> None:
        _share_monitors(plugins, list(self._monitors.values()))

    def monitors(self) -> Mapping[str, Callable[[Callable[[], None]], AbstractAsyncContextManager[object]]]:
        return {name: partial(_subscribed, monitor) for name, monitor in self._monitors.items()}


@asynccontextmanager
async def _subscribed(monitor: GpuMonitor, changed: Callable[[], None]) -> AsyncIterator[None]:
    def guarded() -> None:
        try:
            changed()
        except Exception:  # failing to find names must not stop the reading of GPUs
            logger.exception("names of NVIDIA resources cannot be found", extra={"driver": monitor.driver.name})

    unsubscribe = monitor.views.subscribe(guarded)
    try:
        async with monitor.running():
            yield
    finally:
        unsubscribe()


def driver_for(settings: NvidiaConfig) -> GpuDriver:
    if settings.simulate:
        from plugwright.plugins.nvidia.simulation import SimulatedDriver

        return SimulatedDriver(settings.simulate)
    return Nvml(Path(settings.driver.root))


def resource_name(template: str, model: str, profile: str) -> str:
    """A name from a template: `1g.10gb+me` becomes `1g.10gb.me` as in NVIDIA's plugin, `NVIDIA A100` becomes `a100`."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", model.lower().removeprefix("nvidia ")).strip("-._")
    return template.replace("{model}", plain).replace("{profile}", profile.replace("+", "."))


def _monitor(settings: NvidiaConfig) -> GpuMonitor:
    return GpuMonitor(driver_for(settings), PollIntervals(rescan=settings.rescan))


def _share_monitors(plugins: Sequence[Plugin], monitors: Sequence[GpuMonitor]) -> None:
    """Uses `monitors` for their machines, and the first plugin's for other machines."""
    by_driver = {monitor.driver.name: monitor for monitor in monitors}
    for plugin in plugins:
        if isinstance(plugin, Nvidia):
            shared = by_driver.setdefault(plugin.monitor.driver.name, plugin.monitor)
            if shared is not plugin.monitor:
                rescan = min(shared.intervals.rescan, plugin.monitor.intervals.rescan)
                shared.intervals = replace(shared.intervals, rescan=rescan)
                plugin.monitor = shared


def _sharing(entry: ResourceEntry[NvidiaConfig]) -> SharingBackend:
    share = entry.settings.share
    if share is None or share.by is SharingStrategy.TIME_SLICING:
        return TimeSlicing(entry.name, share)
    if share.by is SharingStrategy.VGPU:
        from plugwright.plugins.nvidia.vgpu import VgpuSharing  # memory that other strategies save

        return VgpuSharing(entry.name, share)
    if entry.is_template:
        raise ConfigError(
            "`share.by: mps` needs a literal resource name: `{model}` and `{profile}` are not supported, because the "
            "MPS daemon is named after the resource"
        )
    from plugwright.plugins.nvidia.mps.plan import max_clients
    from plugwright.plugins.nvidia.mps.sharing import MpsSharing

    clients = max_clients(_NEWEST_CAPABILITY)
    if share.replicas > clients:
        raise ConfigError(f"share.replicas must be at most {clients}, the clients of MPS, got {share.replicas}")
    return MpsSharing(entry.name, share)


def _check_specs(entry: ResourceEntry[NvidiaConfig], other: ResourceEntry[NvidiaConfig]) -> None:
    (own, files), (others, other_files) = (_shared_specs(one.settings) for one in (entry, other))
    if not own or own != others:
        return
    for key, value in files.items():
        if value != other_files[key]:
            raise ConfigError(
                f"{key} must be as for {other.name}, or cdi.vendor another one: both resources write the same CDI specs"
            )


def _shared_specs(settings: NvidiaConfig) -> tuple[tuple[str, str] | None, Mapping[str, object]]:
    """The directory and vendor of a resource's CDI specs, and the keys for their content."""
    writes = settings.cdi.write and any(strategy.is_cdi for strategy in settings.strategies)
    content = {
        "simulate": settings.simulate,
        "driver": settings.driver,
        "cdi.hooks": settings.cdi.hooks,
        "imex.channels": settings.imex_channels,
    }
    return (settings.cdi.dir, settings.cdi.vendor) if writes else None, content


def _template_settings(entry: ResourceEntry[NvidiaConfig]) -> NvidiaConfig:
    """The settings of all resources of a template: MIG devices of any profile, if it contains profiles."""
    settings = entry.settings
    if "{profile}" not in entry.name or settings.select.profile:
        return settings
    return msgspec.structs.replace(settings, select=msgspec.structs.replace(settings.select, profile="*"))


def _members(template: str, settings: NvidiaConfig, gpus: Iterable[Gpu]) -> dict[str, NvidiaConfig]:
    """The resources of a template. The caller checks their names, because a failing GPU's can be empty."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for unit in selection.select_devices(gpus, selection.from_config(settings)):
        kind = (unit.gpu.model, unit.mig.profile if unit.mig else "")
        kinds.setdefault(resource_name(template, *kind), []).append(kind)
    return {name: _selecting(template, settings, found) for name, found in kinds.items()}


def _selecting(template: str, settings: NvidiaConfig, kinds: Sequence[tuple[str, str]]) -> NvidiaConfig:
    """The settings for these models and profiles, of which several can have one name, as `NVIDIA T4` and `T4`."""
    models, profiles = (sorted({_literal_pattern(text) for text in texts}) for texts in zip(*kinds, strict=True))
    select = msgspec.structs.replace(
        settings.select,
        model=models if "{model}" in template else settings.select.model,
        profile=profiles if "{profile}" in template else settings.select.profile,
    )
    return msgspec.structs.replace(settings, select=select)


def _literal_pattern(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


FAMILY = NvidiaFamily()
