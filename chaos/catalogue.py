"""Every fault and experiment, in the order of the table."""

from chaos.experiment import Experiment, Fault, experiment
from chaos.faults import doors, fuzzing, hardware, holders, kubelet_side, limits, oversized, processes, writes

__all__ = ["EXPERIMENTS", "FAULTS"]

FAULTS: tuple[Fault, ...] = (
    *kubelet_side.FAULTS,
    *limits.FAULTS,
    *processes.FAULTS,
    *hardware.FAULTS,
    *doors.FAULTS,
    *oversized.FAULTS,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    *kubelet_side.EXPERIMENTS,
    *map(experiment, kubelet_side.FAULTS),
    *writes.EXPERIMENTS,
    *map(experiment, limits.FAULTS),
    *limits.EXPERIMENTS,
    *map(experiment, processes.FAULTS),
    *processes.EXPERIMENTS,
    *map(experiment, hardware.FAULTS),
    *map(experiment, doors.FAULTS),
    *map(experiment, oversized.FAULTS),
    *oversized.EXPERIMENTS,
    *fuzzing.EXPERIMENTS,
    *holders.EXPERIMENTS,
)
