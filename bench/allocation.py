"""`python -m bench.allocation`: one claim in a cluster of 1,000 nodes, beside kube-scheduler's allocator in Go.

5,000 of 8,000 devices are allocated. The claim asks for a GPU by model and memory. It is tried node by node until one
fits, as a scheduler does; the second claim fits nowhere, so every node is tried. The allocator is new each time, so
slices are read and selectors evaluated within the measured time. The result is only reported, never a failure.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.table import Bar, Row

from plugwright.allocator import AllocatedState, ClaimAllocator, features_of

__all__ = ["main"]

NODES, DEVICES, ALLOCATED = 1_000, 8, 5_000
_ROWS = [
    Row("one claim, fits", "fits_ms", "ms", Bar(150), 1),
    Row("one claim, fits: processor time", "fits_cpu_ms", "ms", digits=1),
    Row("one claim, fits nowhere", "nowhere_ms", "ms", Bar(1500), 1),
    Row("one claim, fits nowhere: processor time", "nowhere_cpu_ms", "ms", digits=1),
    Row("one claim, fits nowhere, slices known", "again_ms", "ms", digits=1),
]
_DRIVER = "gpu.example.com"
_FEATURES = [
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
    "DRADeviceTaints",
    "DRAFractionalCapacityRange",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
]
_Object = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.allocation", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--peer", type=Path, metavar="PROGRAM", help="build/allocator-oracle/1.37, for the ratio")
    options = parser.parse_args(arguments)
    repeat = 2 if options.quick else 7
    samples: dict[str, list[float]] = {}
    peer: dict[str, list[float]] = {}
    for key, model in (("fits", "A"), ("nowhere", "Z")):
        question = _question(model)
        measured = [_measured(question) for _ in range(repeat)]
        samples[f"{key}_ms"] = [wall for wall, _ in measured]
        samples[f"{key}_cpu_ms"] = [processor for _, processor in measured]
        if options.peer:
            peer[f"{key}_ms"] = _peer(options.peer, question, repeat)
    samples["again_ms"] = _measured_again(_question("Z"), repeat)
    print(table.render(_ROWS, samples, peer or None))
    return 0


def _measured(question: _Object) -> tuple[float, float]:
    begin, processor = time.perf_counter(), time.process_time()
    _first_fit(_allocator(question), question)
    return (time.perf_counter() - begin) * 1000, (time.process_time() - processor) * 1000


def _measured_again(question: _Object, repeat: int) -> list[float]:
    allocator = _allocator(question)
    _first_fit(allocator, question)
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        _first_fit(allocator, question)
        times.append((time.perf_counter() - begin) * 1000)
    return times


def _allocator(question: _Object) -> ClaimAllocator:
    allocated = AllocatedState()
    for name in question["allocated"]:
        driver, pool, device = name.split("/")
        allocated.devices.add((driver, pool, device))
    return ClaimAllocator(features_of("1.37"), question["slices"], question["classes"], allocated)


def _first_fit(allocator: ClaimAllocator, question: _Object) -> None:
    pending = allocator.pending(question["claims"])
    for node in question["nodes"]:
        if pending.allocate(node).results:
            return


def _peer(program: Path, question: _Object, repeat: int) -> list[float]:
    command = [str(program), "-nodes", "-repeat", str(repeat)]
    done = subprocess.run(command, input=json.dumps(question) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout)["millis"])


def _question(model: str) -> _Object:
    """A model that the free devices of the last nodes have, or that no device has."""
    names = [f"node-{number:04}" for number in range(NODES)]
    ids = [f"{_DRIVER}/{name}/gpu-{device}" for name in names for device in range(DEVICES)]
    memory = f'device.capacity["{_DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    expression = f'device.attributes["{_DRIVER}"].model == "{model}" && {memory}'
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "selectors": [_cel(expression)]}
    constraint = {"matchAttribute": "resource.kubernetes.io/numaNode"}
    devices = {"requests": [{"name": "gpu", "exactly": exactly}], "constraints": [constraint]}
    return {
        "features": _FEATURES,
        "nodes": [{"metadata": {"name": name}} for name in names],
        "classes": [{"metadata": {"name": "gpu"}, "spec": {"selectors": [_cel(f'device.driver == "{_DRIVER}"')]}}],
        "slices": [_slice(name) for name in names],
        "claims": [{"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": devices}}],
        "allocated": ids[:ALLOCATED],
    }


def _slice(node: str) -> _Object:
    devices = [_device(number) for number in range(DEVICES)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": node}, "spec": {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}}


def _device(number: int) -> _Object:
    attributes = {"model": {"string": "A"}, "resource.kubernetes.io/numaNode": {"int": number // 4}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def _cel(expression: str) -> _Object:
    return {"cel": {"expression": expression}}


if __name__ == "__main__":
    raise SystemExit(main())
