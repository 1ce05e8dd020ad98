"""What has changed between two looks at a machine, for the log: GPUs that came or went, and how they are cut.

Whether a GPU is fit is `health`'s to say.
"""

from collections.abc import Iterator

from plugwright.plugins.nvidia.gpus import Gpu, Reading

__all__ = ["changes"]


def changes(before: Reading, after: Reading) -> Iterator[tuple[str, dict[str, object]]]:
    """Each as a sentence and its facts. The first look of all changes nothing."""
    if not before.driver:
        return
    old, new = {gpu.uuid: gpu for gpu in before.gpus}, {gpu.uuid: gpu for gpu in after.gpus}
    for uuid in sorted(old.keys() - new.keys()):
        yield "GPU is gone", {"gpu": uuid, "index": old[uuid].index}
    for uuid in sorted(new.keys() - old.keys()):
        yield "GPU is new", {"gpu": uuid, "index": new[uuid].index}
    for uuid in sorted(new.keys() & old.keys()):
        if _cut(old[uuid]) != _cut(new[uuid]):
            profiles = ",".join(part.profile for part in new[uuid].mig)
            yield "MIG layout has changed", {"gpu": uuid, "mig": new[uuid].mig_enabled, "profiles": profiles}


def _cut(gpu: Gpu) -> object:
    return gpu.mig_enabled, [part.uuid for part in gpu.mig]
