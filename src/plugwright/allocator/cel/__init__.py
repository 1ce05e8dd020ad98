"""CEL as Kubernetes evaluates it to select devices: `compile_selector(expression).matches(device)`."""

from plugwright.allocator.cel.selector import (
    LENGTH_LIMIT,
    CelDevice,
    CompiledSelector,
    SelectorError,
    SelectorTooCostly,
    compile_selector,
    version,
)

__all__ = [
    "LENGTH_LIMIT",
    "CelDevice",
    "CompiledSelector",
    "SelectorError",
    "SelectorTooCostly",
    "compile_selector",
    "version",
]
