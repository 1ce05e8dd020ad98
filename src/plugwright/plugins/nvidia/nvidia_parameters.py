"""Checks claims' opaque parameters written for NVIDIA's DRA driver; loaded by the first such claim.

`GpuConfig` and `MigDeviceConfig` choose how the containers of a claim share its device. Here the operator chooses for
the resource, so the operator's choice is accepted, and every other field is rejected by its path.
"""

from collections.abc import Iterator, Mapping

from plugwright.errors import PluginError
from plugwright.plugins.nvidia.config import NvidiaShare, SharingStrategy
from plugwright.text import clean

__all__ = ["check"]

_API_VERSION = "resource.nvidia.com/v1beta1"
_KINDS = ("GpuConfig", "MigDeviceConfig")
_TIME_SLICING, _MPS = "TimeSlicing", "MPS"
_NO_INTERVAL = "is the GPU's, and plugwright does not change it: leave it out, or set Default"
_BY_CAPACITY = "is set by the resource: ask for a part of the device in the request's capacity"


def check(resource: str, share: NvidiaShare | None, parameters: Mapping[str, object]) -> None:
    """PluginError with every inapplicable field."""
    problems = list(_problems(share, parameters))
    if problems:
        raise PluginError(f"{resource}: {'; '.join(problems)}")


def _problems(share: NvidiaShare | None, parameters: Mapping[str, object]) -> Iterator[str]:
    kind, version = parameters.get("kind"), parameters.get("apiVersion")
    if version != _API_VERSION or kind not in _KINDS:
        wanted = f"{_API_VERSION}, kind {' or '.join(_KINDS)}"
        yield f"parameters must be of apiVersion {wanted}, got {_shown(version)}, kind {_shown(kind)}"
        return
    for name in parameters.keys() - {"apiVersion", "kind", "sharing"}:
        yield f"{_shown(name)} is not supported"
    sharing = parameters.get("sharing")
    if isinstance(sharing, Mapping):
        yield from _sharing_problems(share, str(kind), sharing)
    elif sharing is not None:
        yield f"sharing must be an object, got {_shown(sharing)}"


def _sharing_problems(share: NvidiaShare | None, kind: str, sharing: Mapping[str, object]) -> Iterator[str]:
    strategy = sharing.get("strategy")
    # The containers of a claim with a whole device take turns, as with TimeSlicing.
    by = share.by if share is not None else SharingStrategy.TIME_SLICING
    own = {SharingStrategy.TIME_SLICING: _TIME_SLICING, SharingStrategy.MPS: _MPS}.get(by)
    if own is None:
        yield f"sharing.strategy must be left out, got {_shown(strategy)}: the resource is shared by {by}"
    elif strategy != own:
        yield f"sharing.strategy must be {own}, got {_shown(strategy)}: the operator shares the resource so"
    for name in sorted(map(str, sharing.keys() - {"strategy"})):
        config = sharing[name]
        if name == "timeSlicingConfig" and kind == "GpuConfig" and isinstance(config, Mapping):
            yield from _interval_problems(config)
        elif name == "mpsConfig" and isinstance(config, Mapping):
            yield from (f"sharing.mpsConfig.{clean(field)} {_BY_CAPACITY}" for field in sorted(map(str, config)))
        else:
            yield f"sharing.{clean(name)} is not supported for {kind}"


def _interval_problems(config: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(map(str, config.keys() - {"interval"})):
        yield f"sharing.timeSlicingConfig.{clean(name)} is not supported"
    interval = config.get("interval", "Default")
    if interval != "Default":
        yield f"sharing.timeSlicingConfig.interval {_NO_INTERVAL}, got {_shown(interval)}"


def _shown(value: object) -> str:
    return clean(repr(value))
