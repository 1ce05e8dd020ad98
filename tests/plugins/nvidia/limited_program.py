"""A CUDA program for the tests of the vGPU limiter, without CUDA's toolkit: obeys lines on stdin, answers with JSON.

allocate KIND MEBIBYTES     [error code, number of the allocation]
free NUMBER                 error code
memory                      [free, total] in MiB, from cuMemGetInfo
nvml                        [total, free, used] in MiB, from NVML
context DEVICE              error code of retaining and using the device's primary context
fork                        starts a copy that goes on with the commands while this process waits for it to end
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from ctypes import byref
from ctypes import c_size_t as size_t
from ctypes import c_uint64 as u64

MIB = 2**20
cuda = ctypes.CDLL("libcuda.so.1")
Free = Callable[[], int]


class Location(ctypes.Structure):
    """CUmemAllocationProp and CUmemPoolProps begin so."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("id", ctypes.c_int),
        ("rest", ctypes.c_char * 72),
    )


class MemoryNode(ctypes.Structure):
    _fields_ = (
        ("pool", Location),
        ("access", ctypes.c_void_p),
        ("count", size_t),
        ("bytes", size_t),
        ("pointer", u64),
    )


class Array(ctypes.Structure):
    _fields_ = (
        ("width", size_t),
        ("height", size_t),
        ("depth", size_t),
        ("format", ctypes.c_uint),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class FlatArray(ctypes.Structure):
    _fields_ = (
        ("width", size_t),
        ("height", size_t),
        ("format", ctypes.c_uint),
        ("channels", ctypes.c_uint),
    )


FLOAT = 0x20
PINNED, ON_DEVICE = 1, 1


def on_device(device: int) -> Location:
    return Location(type=PINNED, location=ON_DEVICE, id=device)


def plain(size: int) -> tuple[int, Free]:
    pointer = u64()
    return cuda.cuMemAlloc_v2(byref(pointer), size_t(size)), lambda: int(cuda.cuMemFree_v2(pointer))


def pitched(size: int) -> tuple[int, Free]:
    pointer, pitch = u64(), size_t()
    code = cuda.cuMemAllocPitch_v2(byref(pointer), byref(pitch), size_t(1024), size_t(size // 1024), 4)
    return code, lambda: int(cuda.cuMemFree_v2(pointer))


def managed(size: int) -> tuple[int, Free]:
    pointer = u64()
    return cuda.cuMemAllocManaged(byref(pointer), size_t(size), 1), lambda: int(cuda.cuMemFree_v2(pointer))


def array(size: int) -> tuple[int, Free]:
    handle, facts = u64(), FlatArray(16384, size // (16384 * 16), FLOAT, 4)
    return cuda.cuArrayCreate_v2(byref(handle), byref(facts)), lambda: int(cuda.cuArrayDestroy(handle))


def array3d(size: int) -> tuple[int, Free]:
    handle, facts = u64(), Array(1024, 1024, size // (1024 * 1024 * 8), FLOAT, 2, 0)
    return cuda.cuArray3DCreate_v2(byref(handle), byref(facts)), lambda: int(cuda.cuArrayDestroy(handle))


def mipmapped(size: int) -> tuple[int, Free]:
    """Three levels: a quarter less for the first one makes `size` of all."""
    handle, facts = u64(), Array(16384, size // (16384 * 16) * 3 // 4, 0, FLOAT, 4, 0)
    code = cuda.cuMipmappedArrayCreate(byref(handle), byref(facts), 3)
    return code, lambda: int(cuda.cuMipmappedArrayDestroy(handle))


def physical(size: int) -> tuple[int, Free]:
    """Mapped, and its handle released: the memory stays until it is unmapped."""
    handle, address = u64(), u64()
    code = cuda.cuMemCreate(byref(handle), size_t(size), byref(on_device(0)), u64(0))
    if not code:
        cuda.cuMemAddressReserve(byref(address), size_t(size), size_t(0), u64(0), u64(0))
        cuda.cuMemMap(address, size_t(size), size_t(0), handle, u64(0))
        cuda.cuMemRelease(handle)
    return code, lambda: int(cuda.cuMemUnmap(address, size_t(size)))


def asynchronous(size: int) -> tuple[int, Free]:
    pointer = u64()
    return cuda.cuMemAllocAsync(byref(pointer), size_t(size), u64(0)), lambda: free_async(pointer)


def per_thread(size: int) -> tuple[int, Free]:
    pointer = u64()
    return cuda.cuMemAllocAsync_ptsz(byref(pointer), size_t(size), u64(0)), lambda: free_async(pointer)


def pooled(size: int) -> tuple[int, Free]:
    pool, pointer = u64(), u64()
    cuda.cuMemPoolCreate(byref(pool), byref(on_device(0)))
    code = cuda.cuMemAllocFromPoolAsync(byref(pointer), size_t(size), pool, u64(0))

    def free() -> int:
        cuda.cuMemFreeAsync(pointer, u64(0))
        return int(cuda.cuMemPoolDestroy(pool))

    return code, free


def graph(size: int) -> tuple[int, Free]:
    handle = u64()
    cuda.cuGraphCreate(byref(handle), 0)
    node = MemoryNode(pool=on_device(0), bytes=size)
    code = cuda.cuGraphAddMemAllocNode(byref(u64()), handle, None, size_t(0), byref(node))
    return instantiated(code, handle)


def captured(size: int) -> tuple[int, Free]:
    handle = u64()
    cuda.cuStreamBeginCapture(u64(0))
    code = cuda.cuMemAllocAsync(byref(u64()), size_t(size), u64(0))
    cuda.cuStreamEndCapture(u64(0), byref(handle))
    return instantiated(code, handle)


def instantiated(code: int, handle: u64) -> tuple[int, Free]:
    instance = u64()
    code = code or cuda.cuGraphInstantiateWithFlags(byref(instance), handle, u64(0))
    cuda.cuGraphDestroy(handle)
    return code, lambda: int(cuda.cuGraphExecDestroy(instance))


def free_async(pointer: u64) -> int:
    code = cuda.cuMemFreeAsync(pointer, u64(0))
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolTrimTo(default_pool(), size_t(0))
    return int(code)


def default_pool() -> u64:
    pool = u64()
    cuda.cuDeviceGetDefaultMemPool(byref(pool), 0)
    return pool


KINDS = (
    plain,
    pitched,
    managed,
    array,
    array3d,
    mipmapped,
    physical,
    asynchronous,
    per_thread,
    pooled,
    graph,
    captured,
)


class Program:
    def __init__(self) -> None:
        self.allocations: list[Free] = []

    def init(self) -> int:
        return int(cuda.cuInit(0))

    def context(self, device: str) -> int:
        context = u64()
        return int(cuda.cuDevicePrimaryCtxRetain(byref(context), int(device)) or cuda.cuCtxSetCurrent(context))

    def release(self, device: str) -> int:
        return int(cuda.cuDevicePrimaryCtxRelease_v2(int(device)))

    def allocate(self, kind: str, mebibytes: str) -> list[int]:
        allocate = next(function for function in KINDS if function.__name__ == kind)
        code, free = allocate(int(mebibytes) * MIB)
        self.allocations.append(free)
        return [code, len(self.allocations) - 1]

    def fill(self, mebibytes: str) -> int:
        """Allocates pieces until one is refused; how many there were."""
        count = 0
        while not plain(int(mebibytes) * MIB)[0]:
            count += 1
        return count

    def free(self, number: str) -> int:
        return self.allocations[int(number)]()

    def memory(self) -> list[int]:
        left, total = size_t(), size_t()
        cuda.cuMemGetInfo_v2(byref(left), byref(total))
        return [left.value // MIB, total.value // MIB]

    def total(self, device: str) -> int:
        total = size_t()
        cuda.cuDeviceTotalMem_v2(byref(total), int(device))
        return total.value // MIB

    def nvml(self, device: str) -> list[int]:
        nvml, handle, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(int(device), byref(handle))
        nvml.nvmlDeviceGetMemoryInfo(handle, memory)
        return [value // MIB for value in memory]

    def kernels(self, mebibytes: str) -> int:
        return int(cuda.cuLoadKernels(size_t(int(mebibytes) * MIB)))

    def synchronize(self) -> int:
        return int(cuda.cuCtxSynchronize())

    def unknown(self) -> int:
        return int(cuda.cuFutureFunction())

    def procedures(self) -> dict[str, bool]:
        """Whether both versions of cuGetProcAddress lead to the functions that the library exports."""
        names = {("cuMemAlloc", 0): "cuMemAlloc_v2", ("cuMemAllocAsync", 0): "cuMemAllocAsync"}
        names |= {("cuMemAllocAsync", 2): "cuMemAllocAsync_ptsz", ("cuFutureFunction", 0): "cuFutureFunction"}
        names |= {("cuGetProcAddress", 0): "cuGetProcAddress_v2", ("cuDeviceTotalMem", 0): "cuDeviceTotalMem_v2"}
        same = {}
        for (name, flags), exported in names.items():
            address = ctypes.cast(getattr(cuda, exported), ctypes.c_void_p).value
            found, old = ctypes.c_void_p(), ctypes.c_void_p()
            cuda.cuGetProcAddress_v2(name.encode(), byref(found), 13000, u64(flags), None)
            cuda.cuGetProcAddress(name.encode(), byref(old), 13000, u64(flags))
            same[exported] = found.value == old.value == address
        return same

    def fork(self) -> int:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return os.getpid()

    def leave_child(self) -> int:
        """A child that holds this process's descriptors, as one that was forked for other work, until it is killed."""
        child = os.fork()
        if not child:
            os.closerange(0, 3)
            signal.pause()
        return child

    def close_descriptors(self) -> int:
        os.closerange(3, 1024)
        return 0


def lines() -> Iterator[list[str]]:
    while line := sys.stdin.readline():
        yield line.split()


if __name__ == "__main__":
    program = Program()
    for command, *arguments in lines():
        print(json.dumps(getattr(program, command)(*arguments)), flush=True)
