"""One GPU, by the plugin for NVIDIA GPUs: a made-up library reports it, and the driver's files are where SETTINGS say.

gpu.py RESOURCE SETTINGS: SETTINGS is JSON, the content of `nvidia` in a configuration.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import msgspec
from tests.plugins.nvidia.binding import Binding, Card

from plugwright import run
from plugwright.plugins.nvidia.config import NvidiaConfig
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import KernelPaths, Nvml
from plugwright.plugins.nvidia.plugin import Nvidia

NOWHERE = KernelPaths(Path("/nowhere"), Path("/nowhere"))

binding = Binding(Card("GPU-0"))
monitor = GpuMonitor(Nvml(paths=NOWHERE, binding=lambda: binding), PollIntervals())
run(Nvidia(sys.argv[1], msgspec.json.decode(sys.argv[2], type=NvidiaConfig), monitor))
