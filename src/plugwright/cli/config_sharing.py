"""What the operator's file says of MPS and vgpu, as the plugin takes it; the keys themselves are `config_nvidia`'s."""

from pathlib import Path

from plugwright.cli import config_nvidia
from plugwright.cli.config_nvidia import NvidiaEntry, NvidiaMps, NvidiaShare, NvidiaVgpu
from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.mps.plan import MpsOptions, most_clients
from plugwright.plugins.nvidia.vgpu import VgpuOptions
from plugwright.plugins.nvidia.words import By, Mig

__all__ = ["check", "mps_options", "packed", "vgpu_options"]

_NEWEST = (99, 0)  # the compute capability that no GPU surpasses


def check(resource: str, entry: NvidiaEntry) -> None:
    """What does not go together is said before there is a GPU."""
    share = entry.share
    if share is None:
        return
    if share.by is By.MPS and config_nvidia.is_family(resource):
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
