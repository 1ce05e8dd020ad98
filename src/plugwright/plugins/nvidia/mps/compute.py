"""The compute mode of GPUs: made exclusive where the operator asks for it, and put back as it was.

Through `nvidia-smi`, which is where NVIDIA's programs for MPS are. Nobody else in plugwright changes a GPU's settings.
"""

from collections.abc import Mapping

from plugwright.errors import PeerGone, PluginError
from plugwright.plugins.nvidia.gpus import ComputeMode
from plugwright.plugins.nvidia.mps.programs import answer

__all__ = ["make_exclusive", "put_back"]

_WORDS = {
    ComputeMode.DEFAULT: "DEFAULT",
    ComputeMode.EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
    ComputeMode.PROHIBITED: "PROHIBITED",
}
_TIMEOUT = 30.0  # without persistence mode it loads the driver first


async def make_exclusive(program: str, modes: Mapping[str, ComputeMode]) -> None:
    """`modes`: each GPU's mode now. One that is exclusive already is not touched."""
    for uuid, mode in sorted(modes.items()):
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set(program, uuid, ComputeMode.EXCLUSIVE_PROCESS)


async def put_back(program: str, modes: Mapping[str, ComputeMode]) -> None:
    for uuid, mode in sorted(modes.items()):
        if mode in _WORDS and mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set(program, uuid, mode)


async def _set(program: str, uuid: str, mode: ComputeMode) -> None:
    try:
        await answer([program, "-i", uuid, "-c", _WORDS[mode]], _TIMEOUT)
    except PeerGone as error:
        raise PluginError(f"cannot set the compute mode of {uuid}: {error}") from error
