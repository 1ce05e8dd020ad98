"""`plugwright check`: every mistake in a configuration file."""

from pathlib import Path

import click

from plugwright.cli.import_ import recognised_format
from plugwright.cli.options import UncheckedPath
from plugwright.cli.run import show_valid
from plugwright.cli.run_settings import CONFIG
from plugwright.config import schema
from plugwright.errors import ConfigError

__all__ = ["check"]


@click.command(epilog="Example:  plugwright check plugwright.yaml && helm upgrade …")
@click.argument("path", metavar="[FILE]", type=UncheckedPath(), required=False)
def check(path: Path | None) -> None:
    """Check a configuration file and print every mistake with its line.

    Touches no device and needs no kubelet. The exit code is 1 if the file is invalid.
    """
    path = path or Path(str(CONFIG.default))
    try:
        show_valid(path, schema.load(path))
    except ConfigError as error:
        found = recognised_format(path)
        if not found and {"apiVersion", "kind"} <= _top_level_keys(path):
            text = f"{path} is a Kubernetes object; a configuration of plugwright begins with `resources:`"
            raise ConfigError(f"{text} (of a ConfigMap, check the text in `data`)") from error
        if not found:
            raise
        raise ConfigError(
            f"{path} is a configuration of another plugin; convert it: plugwright import --from {found} {path}"
        ) from error


def _top_level_keys(path: Path) -> set[str]:
    """The top-level keys; empty for a file that cannot be read."""
    try:
        return {line.partition(":")[0] for line in path.read_text().splitlines() if line[:1].isalpha()}
    except (OSError, UnicodeDecodeError):
        return set()
