"""Prints the driver's version as its management library, found by the loader, says it."""

import ctypes
import sys


def main() -> None:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    version = ctypes.create_string_buffer(80)
    for name, arguments in (("nvmlInit_v2", ()), ("nvmlSystemGetDriverVersion", (version, 80))):
        if code := getattr(nvml, name)(*arguments):
            sys.exit(f"{name} failed with {code}")
    print(version.value.decode())


if __name__ == "__main__":
    main()
