"""`plugwright new`: a new project with a plugin, its tests, its image and its chart.

The files are in `new_project`, with placeholders such as `@NAME@`; MODULE in a file's name is the module.
"""

import json
import keyword
import os
import re
import shlex
import sys
from importlib.metadata import distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from plugwright.errors import ConfigError
from plugwright.model import Resource
from plugwright.version import __version__

__all__ = ["new"]

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_SUFFIX = ".in"
_CHART = "deploy/helm/plugwright"
_BESIDE = f"file://../../plugwright/{_CHART}"  # the clone, in the directory of the project


@click.command(epilog="Example:  plugwright new npu --resource acme.example/npu")
@click.argument("name")
@click.option("--resource", default="", help="Resource that pods request.  [default: example.com/NAME]")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False),
              help="Directory of the new project.  [default: NAME]")  # fmt: skip
@click.option("--chart", help="Helm repository of plugwright's own chart.  [default: that of the clone]")
def new(name: str, resource: str, directory: Path | None, chart: str | None) -> None:
    """Make a project for a device plugin: the plugin, its tests, CI, image and chart.

    Its tests pass without a cluster, root or hardware. Then replace the directory of files that it serves with your
    own hardware.
    """
    directory = directory or Path(name)
    values = _values(name, resource or f"example.com/{name}", chart or _chart(directory))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"directory of a new project must be empty or not exist, got {directory}")
    for path, text in _contents(files("plugwright.cli") / "new_project", values):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for line in _next_steps(directory, values):
        click.echo(line)


def _values(name: str, resource: str, chart: str) -> dict[str, str]:
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        rule = "lower-case letters, digits and '-', at most 40, a letter first and no '-' last"
        raise ConfigError(f"name of a project must have {rule}, got {name!r}")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("plugwright", "tests"):
        raise ConfigError(f"name of a project must not be that of a module that Python or plugwright has, got {name!r}")
    words = name.split("-")
    return {
        "NAME": name,
        "MODULE": module,
        "CLASS": "".join(word.capitalize() for word in words),
        "TITLE": " ".join(words).capitalize(),
        "ENV": f"{module.upper()}_DEVICES",
        "VARIABLE": f"{module.upper()}_DIR",
        "RESOURCE": Resource(resource).name,
        "CHART": chart,
        "VERSION": __version__,
    }


def _contents(template: Traversable, values: dict[str, str], below: str = "") -> list[tuple[str, str]]:
    found = []
    for entry in sorted(template.iterdir(), key=lambda entry: entry.name):
        path = f"{below}{entry.name}"
        if entry.is_dir():
            found += _contents(entry, values, f"{path}/")
        elif path.endswith(_SUFFIX):
            name = path.removesuffix(_SUFFIX).replace("MODULE", values["MODULE"])
            found.append((name, re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], entry.read_text("utf-8"))))
    return found


def _next_steps(directory: Path, values: dict[str, str]) -> list[str]:
    source = _source()
    wheel = [f"  pip wheel --quiet --no-deps --wheel-dir wheels {shlex.quote(source)}"] if source else []
    return [
        f"{directory} is a device plugin for {values['RESOURCE']}. Next:",
        f"  cd {shlex.quote(str(directory))}",
        "  python3 -m venv .venv && . .venv/bin/activate",
        *wheel,
        f"  pip install {'--find-links wheels ' if source else ''}-e '.[test]' && pytest && mypy",
        f"  plugwright dev {values['MODULE']}.py        # reloads when you save",
        "README.md has the rest: the image, the chart, a pod.",
    ]


def _chart(directory: Path) -> str:
    """The chart of the clone that plugwright was installed from, relative to the project's own chart."""
    chart = Path(_source(), _CHART)
    if not chart.is_absolute() or not chart.is_dir():
        return _BESIDE
    return f"file://{os.path.relpath(chart.resolve(), (directory / 'chart').resolve())}"


def _source() -> str:
    """The clone, file or repository that plugwright was installed from; empty if that was a package index."""
    record = json.loads(distribution("plugwright").read_text("direct_url.json") or "{}")
    url = record.get("url", "")
    if "vcs_info" in record:
        return f"{record['vcs_info']['vcs']}+{url}"
    return unquote(urlsplit(url).path) if url.startswith("file:") else url
