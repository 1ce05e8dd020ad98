"""What protobuf loads beside its messages in C: the same once more in Python, 1 MiB that nobody uses.

For a program that is all ours, such as the daemon: a library leaves alone how others' modules are loaded.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec

__all__ = ["put_off"]

_PACKAGE, _MODULE = "google.protobuf.internal", "python_message"


def put_off() -> None:
    """Called before protobuf is loaded. Whoever uses them, as on a machine without those in C, has them loaded then."""
    name = f"{_PACKAGE}.{_MODULE}"
    spec = find_spec(name)
    if spec is None or spec.loader is None or name in sys.modules:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # Found here, it is not imported, which would look at it and so have it loaded.
    setattr(sys.modules[_PACKAGE], _MODULE, module)
