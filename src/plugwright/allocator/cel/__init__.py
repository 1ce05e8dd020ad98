"""CEL as Kubernetes evaluates it to select devices: `compile_selector(expression).matches(device)`."""

from plugwright.allocator.cel.selector import CelDevice, Selector, SelectorError, compile_selector

__all__ = ["CelDevice", "Selector", "SelectorError", "compile_selector"]
