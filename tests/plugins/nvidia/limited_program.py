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
import socket
import sys
from collections.abc import Callable, Iterator
from ctypes import byref
from ctypes import c_size_t as size_t
from ctypes import c_uint64 as u64
from pathlib import Path

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


class Tile(ctypes.Structure):
    """CUarrayMapInfo, of a part of one level."""

    _fields_ = (
        ("array_type", ctypes.c_int),
        ("array", u64),
        ("part_type", u64),  # and padding
        ("part", ctypes.c_uint * 8),  # level, layer, offset and extent
        ("operation", ctypes.c_int),
        ("handle_type", ctypes.c_int),
        ("allocation", u64),
        ("offset", u64),
        ("devices", ctypes.c_uint),
        ("rest", ctypes.c_uint * 3),
    )


class Ipc(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


FLOAT = 0x20
PINNED, MANAGED, ON_DEVICE, DESCRIPTOR = 1, 2, 1, 1
STACK, FIFO, HEAP = 0, 1, 2
SPARSE, FOR_TILES, MAP, UNMAP = 0x40, 1, 1, 2
STREAM = u64(2)  # the default one of each thread, which can be captured
PTX = """.version 7.0
.target sm_70
.address_size 64
"""
DEEP = """.visible .entry kernel(.param .u64 to, .param .u32 at)
{{
  .local .align 16 .b8 depot[{bytes}];
  .reg .b64 %d<6>; .reg .b32 %r<3>; .reg .pred %p;
  ld.param.u64 %d1, [to]; ld.param.u32 %r1, [at];
  cvt.u64.u32 %d2, %r1; mov.u64 %d3, depot; add.u64 %d4, %d3, %d2;
  st.local.u8 [%d4], %r1; ld.local.u8 %r2, [%d3];
  setp.eq.u64 %p, %d1, 0;
  @%p bra end;
  st.global.u8 [%d1], %r2;
end:
  ret;
}}
"""
EMPTY = ".visible .entry kernel()\n{\n  ret;\n}\n"
MALLOC = """.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .entry kernel(.param .u64 to)
{
  .reg .b64 %d<4>;
  .param .b64 bytes; .param .b64 result;
  mov.u64 %d1, 1024; st.param.b64 [bytes], %d1;
  call.uni (result), malloc, (bytes);
  ld.param.b64 %d2, [result]; ld.param.u64 %d3, [to]; st.global.u64 [%d3], %d2;
  ret;
}
"""


PRINTF = """.extern .func (.param .b32 written) vprintf (.param .b64 text, .param .b64 values);
.visible .entry kernel(.param .u64 to)
{
  .reg .b64 %d<3>;
  .param .b64 text; .param .b64 values; .param .b32 written;
  ld.param.u64 %d1, [to]; st.param.b64 [text], %d1; mov.u64 %d2, 0; st.param.b64 [values], %d2;
  call.uni (written), vprintf, (text, values);
  ret;
}
"""


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


def sparse(size: int) -> tuple[int, Free]:
    """An array whose halves are mapped to one allocation each, with the handles released."""
    rows = size // (16384 * 16)
    array, facts = u64(), Array(16384, rows, 0, FLOAT, 4, SPARSE)
    if code := cuda.cuArray3DCreate_v2(byref(array), byref(facts)):
        return code, lambda: 0
    code = mapped_half(array, 0, rows // 2) or mapped_half(array, rows // 2, rows // 2)

    def free() -> int:
        """Unmaps the first half; the second one goes with the array."""
        cuda.cuMemMapArrayAsync(byref(tile_of(array, 0, rows // 2, UNMAP)), 1, u64(0))
        cuda.cuCtxSynchronize()
        return int(cuda.cuArrayDestroy(array))

    if code:
        free()
    return code, free


def mapped_half(array: u64, first: int, rows: int) -> int:
    handle, facts = u64(), on_device(0)
    facts.rest = bytes(10) + bytes([FOR_TILES])
    if code := cuda.cuMemCreate(byref(handle), size_t(rows * 16384 * 16), byref(facts), u64(0)):
        return int(code)
    tile = tile_of(array, first, rows, MAP)
    tile.allocation = handle.value
    for _ in range(2):  # the second time in place of the first
        if code := cuda.cuMemMapArrayAsync(byref(tile), 1, u64(0)):
            return int(code)
    return int(cuda.cuMemRelease(handle))


def tile_of(array: u64, first: int, rows: int, operation: int) -> Tile:
    part = (ctypes.c_uint * 8)(0, 0, 0, first, 0, 16384, rows, 1)
    return Tile(array=array.value, part=part, operation=operation, devices=1)


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
    return instantiated(code, handle, u64(node.pointer))


def captured(size: int) -> tuple[int, Free]:
    code, handle, pointer = captured_graph(size, 1, is_freed=False)
    return instantiated(code, handle, pointer)


def captured_graph(size: int, times: int, is_freed: bool) -> tuple[int, u64, u64]:
    """A graph that allocates, uses and perhaps frees memory, several times one after the other."""
    handle, pointer, code = u64(), u64(), int(cuda.cuStreamBeginCapture_v2(STREAM, 0))
    for _ in range(times):
        code = code or cuda.cuMemAllocAsync(byref(pointer), size_t(size), STREAM)
        if is_freed:
            code = code or cuda.cuMemFreeAsync(pointer, STREAM)
    cuda.cuStreamEndCapture(STREAM, byref(handle))
    return code, handle, pointer


def instantiated(code: int, handle: u64, kept: u64 | None = None) -> tuple[int, Free]:
    """Launched once; `kept` is memory that the graph does not free."""
    instance = u64()
    code = code or cuda.cuGraphInstantiateWithFlags(byref(instance), handle, u64(0))
    code = code or cuda.cuGraphLaunch(instance, STREAM)
    cuda.cuCtxSynchronize()
    cuda.cuGraphDestroy(handle)

    def free() -> int:
        if kept is not None:
            cuda.cuMemFree_v2(kept)
        return int(cuda.cuGraphExecDestroy(instance))

    return code, free


def free_async(pointer: u64) -> int:
    code = cuda.cuMemFreeAsync(pointer, u64(0))
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolTrimTo(default_pool(), size_t(0))
    return int(code)


def default_pool() -> u64:
    pool = u64()
    cuda.cuDeviceGetDefaultMemPool(byref(pool), 0)
    return pool


def managed_pool(size: int) -> tuple[int, Free]:
    """CUDA 13's pools of managed memory."""
    pool, pointer = u64(), u64()
    cuda.cuMemPoolCreate(byref(pool), byref(Location(type=MANAGED, location=ON_DEVICE, id=0)))
    code = cuda.cuMemAllocFromPoolAsync(byref(pointer), size_t(size), pool, u64(0))

    def free() -> int:
        cuda.cuMemFreeAsync(pointer, u64(0))
        cuda.cuCtxSynchronize()
        return int(cuda.cuMemPoolDestroy(pool))

    return code, free


KINDS = (
    plain,
    pitched,
    managed,
    array,
    array3d,
    mipmapped,
    physical,
    sparse,
    asynchronous,
    per_thread,
    pooled,
    graph,
    captured,
    managed_pool,
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

    def pieces(self, kibibytes: str) -> list[int]:
        """Allocates small pieces until one is refused, frees every second one, then all: how many, and what is free."""
        held = []
        while not cuda.cuMemAlloc_v2(byref(pointer := u64()), size_t(int(kibibytes) * 1024)):
            held.append(pointer)
        full = self.memory()[0]
        for pointer in held[::2]:
            cuda.cuMemFree_v2(pointer)
        half = self.memory()[0]
        for pointer in held[1::2]:
            cuda.cuMemFree_v2(pointer)
        return [len(held), full, half, self.memory()[0]]

    def limit(self, which: str, size: str) -> int:
        return int(cuda.cuCtxSetLimit({"stack": STACK, "fifo": FIFO, "heap": HEAP}[which], size_t(int(size))))

    def module(self, text: str) -> u64:
        module = u64()
        if code := cuda.cuModuleLoadData(byref(module), (PTX + text).encode()):
            raise MemoryError(code)
        return module

    def launch(self, kind: str, size: str = "0") -> int:
        """Of a kernel that does nothing, needs so much local memory, allocates from the heap, or prints."""
        texts = {"empty": EMPTY, "deep": DEEP.format(bytes=size), "heap": MALLOC, "print": PRINTF}
        kernel, target, module = u64(), u64(), self.module(texts[kind])
        cuda.cuMemAlloc_v2(byref(target), size_t(8))
        at = ctypes.c_uint(0)
        arguments = (ctypes.c_void_p * 2)(*(ctypes.cast(byref(value), ctypes.c_void_p) for value in (target, at)))
        code = cuda.cuModuleGetFunction(byref(kernel), module, b"kernel")
        code = code or cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, u64(0), arguments, None)
        return int(code or cuda.cuCtxSynchronize())

    def variables(self, mebibytes: str, how: str) -> list[int]:
        """Loads a module with variables of so much memory, and says what is free then and after it is unloaded."""
        size = int(mebibytes) * MIB // 3
        text = PTX + "".join(f".visible .global .align 16 .b8 {name}[{size}];\n" for name in "abc") + EMPTY
        module, kernel = u64(), u64()
        if how == "module":
            code = cuda.cuModuleLoadData(byref(module), text.encode())
        else:
            code = cuda.cuLibraryLoadData(byref(module), text.encode(), None, None, 0, None, None, 0)
            code = code or cuda.cuLibraryGetKernel(byref(kernel), module, b"kernel")
        free = self.memory()[0]
        if not code:
            (cuda.cuModuleUnload if how == "module" else cuda.cuLibraryUnload)(module)
        return [code, free, self.memory()[0]]

    def early(self, mebibytes: str) -> list[int]:
        """Asks for a kernel without a context, as the CUDA runtime does: while the GPU has one, and before it has one.

        The errors of the first, of the second, and of the context that is then made.
        """
        codes, context = [], u64()
        for has_context in (True, False):
            library, kernel = u64(), u64()
            text = PTX + f".visible .global .align 16 .b8 a[{int(mebibytes) * MIB}];\n" + EMPTY
            cuda.cuCtxSetCurrent(u64(0))
            if not has_context:
                cuda.cuDevicePrimaryCtxRelease_v2(0)
            codes.append(cuda.cuLibraryLoadData(byref(library), text.encode(), None, None, 0, None, None, 0))
            codes[-1] = codes[-1] or cuda.cuLibraryGetKernel(byref(kernel), library, b"kernel")
            if not has_context:
                codes.append(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
            cuda.cuLibraryUnload(library)
        return codes

    def reimport(self, mebibytes: str, most: str) -> list[int]:
        """Creates, exports, releases and imports memory until something is refused; how often it worked, the error."""
        size = size_t(int(mebibytes) * MIB)
        for done in range(int(most)):
            handle, descriptor, again = u64(), ctypes.c_int(), u64()
            facts = Location(type=PINNED, handles=DESCRIPTOR, location=ON_DEVICE, id=0)
            if code := cuda.cuMemCreate(byref(handle), size, byref(facts), u64(0)):
                return [done, code]
            cuda.cuMemExportToShareableHandle(byref(descriptor), handle, DESCRIPTOR, u64(0))
            cuda.cuMemRelease(handle)
            target = ctypes.c_void_p(descriptor.value)
            if code := cuda.cuMemImportFromShareableHandle(byref(again), target, DESCRIPTOR):
                return [done, code]
            os.close(descriptor.value)
            self.allocations.append(lambda again=again: int(cuda.cuMemRelease(again)))  # type: ignore[misc]
        return [int(most), 0]

    def send(self, mebibytes: str, path: str) -> int:
        """Passes a descriptor of memory to whoever listens at the path."""
        handle, descriptor = u64(), ctypes.c_int()
        facts = Location(type=PINNED, handles=DESCRIPTOR, location=ON_DEVICE, id=0)
        if code := cuda.cuMemCreate(byref(handle), size_t(int(mebibytes) * MIB), byref(facts), u64(0)):
            return int(code)
        if code := cuda.cuMemExportToShareableHandle(byref(descriptor), handle, DESCRIPTOR, u64(0)):
            return int(code)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            socket.send_fds(connection, [b"1"], [descriptor.value])
        os.close(descriptor.value)
        return 0

    def ipc_export(self, mebibytes: str) -> list[object]:
        pointer, memory = u64(), (ctypes.c_ubyte * 64)()
        code = cuda.cuMemAlloc_v2(byref(pointer), size_t(int(mebibytes) * MIB))
        code = code or cuda.cuIpcGetMemHandle(memory, pointer)
        return [code, bytes(memory).hex()]

    def ipc_open(self, text: str) -> int:
        memory, pointer = Ipc.from_buffer_copy(bytes.fromhex(text)), u64()
        code = cuda.cuIpcOpenMemHandle_v2(byref(pointer), memory, 1)
        self.allocations.append(lambda: int(cuda.cuIpcCloseMemHandle(pointer)))
        return int(code)

    def graph_of(self, times: str, mebibytes: str) -> int:
        """Captures and launches a graph that allocates and frees so often."""
        code, handle, _ = captured_graph(int(mebibytes) * MIB, int(times), is_freed=True)
        code, free = instantiated(code, handle)
        self.allocations.append(free)
        return code

    def procedure(self, name: str) -> bool:
        """Whether cuGetProcAddress leads to the function that the library exports."""
        found = ctypes.c_void_p()
        cuda.cuGetProcAddress_v2(name.encode(), byref(found), 13000, u64(0), None)
        return found.value == ctypes.cast(getattr(cuda, f"{name}_v2"), ctypes.c_void_p).value

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

    def visible(self) -> str | None:
        """The GPUs that the driver may see: read by the C library, as the driver does it."""
        read = ctypes.CDLL(None).getenv
        read.restype = ctypes.c_char_p
        found = read(b"CUDA_VISIBLE_DEVICES")
        return None if found is None else str(found.decode())

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

    def drop_lock(self) -> int:
        """As the kernel does with a killed process before the driver hears of it: no mapping, no descriptor of ours."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        ranges = [line.split()[0].split("-") for line in maps.splitlines() if line.endswith("/usage")]
        for start, end in ranges:
            ctypes.CDLL(None).munmap(ctypes.c_void_p(int(start, 16)), size_t(int(end, 16) - int(start, 16)))
        return self.close_descriptors()

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
