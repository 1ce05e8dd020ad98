"""A minimal program that uses GPUs with the driver's library alone, and prints how many it could use."""

import ctypes
import sys

_SIZE = 64 * 2**20


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    _call(cuda.cuInit(0), "cuInit")
    count = ctypes.c_int()
    _call(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    for index in range(count.value):
        _use(cuda, index)
    print(count.value)


def _use(cuda: ctypes.CDLL, index: int) -> None:
    """Writes memory of the GPU and reads it back."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _call(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    _call(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    _call(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    _call(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(_SIZE)), "cuMemAlloc")
    _call(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), ctypes.c_size_t(_SIZE)), "cuMemsetD8")
    back = (ctypes.c_ubyte * 16)()
    _call(cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(16)), "cuMemcpyDtoH")
    if list(back) != [7] * 16:
        sys.exit("the GPU's memory does not hold what was written")
    _call(cuda.cuMemFree_v2(memory), "cuMemFree")


def _call(result: int, name: str) -> None:
    if result:
        sys.exit(f"{name} failed with {result}")


if __name__ == "__main__":
    main()
