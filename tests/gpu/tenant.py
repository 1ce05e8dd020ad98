"""A CUDA program without CUDA's toolkit: allocates memory of the first GPU, and prints how much it got.

Run as a program: tenant.py MEBIBYTES [hold]. It allocates in pieces until it has so much, or is refused; with `hold` it
keeps the memory until it is ended. Exit code 3: there is no driver, or no GPU.
"""

import ctypes
import json
import signal
import sys

PIECE = 64  # MiB
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
NO_GPU = 3


def main() -> None:
    target = int(sys.argv[1])
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(NO_GPU)
    if code := cuda.cuInit(0):
        print(f"cuInit: {name(cuda, code)}", file=sys.stderr)
        sys.exit(NO_GPU)
    device, context, processors = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    check(cuda, cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda, cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda, cuda.cuCtxSetCurrent(context))
    check(cuda, cuda.cuDeviceGetAttribute(ctypes.byref(processors), MULTIPROCESSORS, device))
    taken, refused = allocate(cuda, target)
    print(json.dumps({"processors": processors.value, "mebibytes": taken, "refused": refused}), flush=True)
    if sys.argv[2:] == ["hold"]:
        signal.pause()


def allocate(cuda: ctypes.CDLL, target: int) -> tuple[int, str]:
    taken = 0
    while taken < target:
        pointer = ctypes.c_uint64()
        if code := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(PIECE * 2**20)):
            return taken, name(cuda, code)
        taken += PIECE
    return taken, ""


def check(cuda: ctypes.CDLL, code: int) -> None:
    if code:
        sys.exit(name(cuda, code))


def name(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or str(code).encode()).decode()


if __name__ == "__main__":
    main()
