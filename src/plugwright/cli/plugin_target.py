"""Plugins named on the command line: `tape.py:Tape`, `acme.tape:Tape`, or a file that contains one plugin.

A file is loaded as Python runs it, with its directory on the path; a call of `run()` in it serves nothing and names the
plugins. Every failure in it is reported with its line.
"""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from plugwright.errors import ConfigError, InvalidValue, PluginFailed
from plugwright.model import some
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.run import collected_plugins
from plugwright.text import line_of

__all__ = ["load_plugins"]


def load_plugins(target: str) -> list[Plugin]:
    """The plugins of `MODULE:NAME`, `FILE.py:NAME`, `MODULE` or `FILE.py`; `ConfigError` if there is none."""
    source, _, name = target.partition(":")
    with collected_plugins() as collected:
        module = _load(source)
    if name:
        plugins = [_made(target, _named(module, source, name))]
    else:
        plugins = list(collected) or [_made(target, _only_class(module, source))]
    try:
        return check_plugins(plugins)
    except InvalidValue as error:
        raise ConfigError(f"{target}: {error}") from None


def _load(source: str) -> ModuleType:
    is_file = source.endswith(".py") or "/" in source
    path = Path(source).absolute()
    if is_file and not path.is_file():
        raise ConfigError(f"plugin must be FILE.py:CLASS or MODULE:CLASS, got {source!r}, which is no file")
    sys.path.insert(0, str(path.parent if is_file else Path.cwd()))
    try:
        return _load_file(path) if is_file else import_module(source)
    except ModuleNotFoundError as error:
        if not is_file and error.name == source.partition(".")[0]:
            raise ConfigError(
                f"plugin must be FILE.py:CLASS or MODULE:CLASS, got {source!r}, which is no module"
            ) from None
        raise _load_error(source, error) from error
    except (Exception, SystemExit) as error:
        raise _load_error(source, error) from error


class _ScriptLoader(SourceFileLoader):
    """Neither reads nor writes byte code, which could be that of another save in the same second with the same size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path, loader=_ScriptLoader(path.stem, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_error(source: str, error: BaseException) -> ConfigError:
    if isinstance(error, SyntaxError):
        return ConfigError(
            f"{source} cannot be loaded: {error.msg} at {Path(error.filename or source).name}:{error.lineno}"
        )
    line = line_of(error)
    return ConfigError(f"{source} cannot be loaded: {type(error).__name__}: {error}{f' at {line}' if line else ''}")


def _classes(module: ModuleType) -> dict[str, type[Plugin]]:
    """The plugin classes that the module itself defines publicly."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Plugin)
        and value.__module__ == module.__name__
        and name[0] != "_"
    }


def _only_class(module: ModuleType, source: str) -> object:
    classes = _classes(module)
    if not classes:
        raise ConfigError(f"{source} must define a subclass of plugwright.Plugin, got none")
    if len(classes) > 1:
        raise ConfigError(
            f"{source} has several plugins, choose one as {source}:{next(iter(classes))} (it has: {some(classes)})"
        )
    return next(iter(classes.values()))


def _named(module: ModuleType, source: str, name: str) -> object:
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"{source} has no {name!r} (it has: {some(_classes(module))})") from None


def _made(target: str, plugin: object) -> Plugin:
    if isinstance(plugin, Plugin):
        return plugin
    if not isinstance(plugin, type) or not issubclass(plugin, Plugin):
        raise ConfigError(f"{target} must be a subclass of plugwright.Plugin or an instance of one, got {plugin!r}")
    try:
        return plugin()
    except Exception as error:  # the author's own __init__
        failed = PluginFailed(target, "__init__", error)
        raise ConfigError(f"{failed}; if it needs arguments, name an instance instead of the class") from error
