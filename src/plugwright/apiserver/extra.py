"""The libraries behind the API server, which plugwright installs with an extra.

Checked before anything needs to be cleaned up, so that a missing library is a one-line error.
"""

from importlib import import_module

from plugwright.errors import ConfigError

__all__ = ["check_installed"]

_SERVED = ("starlette", "uvicorn", "cryptography", "trustme")


def check_installed(user: str, libraries: tuple[str, ...] = _SERVED, extra: str = "cluster") -> None:
    """Raises `ConfigError` if a library is missing; `user` is the command or the function that needs it."""
    for name in libraries:
        try:
            import_module(name)
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] not in libraries:
                raise
            raise ConfigError(f"{user} needs {name}: pip install 'plugwright[{extra}]'") from missing
