"""What `plugwright[cluster]` installs: loaded before there is anything to clean up, a missing one is one line."""

from importlib import import_module
from types import ModuleType

from plugwright.errors import ConfigError

__all__ = ["load_with_extra"]

_EXTRA = ("starlette", "uvicorn", "cryptography", "trustme")


def load_with_extra(module: str, command: str) -> ModuleType:
    """The module with all it needs; `command` is what the user called."""
    try:
        for name in _EXTRA:
            import_module(name)
        return import_module(module)
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _EXTRA:
            raise
        raise ConfigError(f"{command} needs {name}: pip install 'plugwright[cluster]'") from missing
