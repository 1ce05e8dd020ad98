"""Keeps protobuf's Python implementation, 1 MiB, out of memory: the messages are implemented in C.

For a program that is all ours, such as the daemon; a library must not change how other packages are loaded.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec

__all__ = ["defer_protobuf_python"]

_PACKAGE, _MODULE = "google.protobuf.internal", "python_message"


def defer_protobuf_python() -> None:
    """Defers the load to the first use, as on a machine without the C implementation. Call it before protobuf loads."""
    name = f"{_PACKAGE}.{_MODULE}"
    spec = find_spec(name)
    if spec is None or spec.loader is None or name in sys.modules:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # Set here, it is not imported by protobuf, which would read an attribute of it and so load it.
    setattr(sys.modules[_PACKAGE], _MODULE, module)
