"""`plugwright manifest`: plain manifests, for clusters without Helm."""

from pathlib import Path

import click
import yaml

from plugwright.cli.output import Dumper
from plugwright.config import manifests, schema
from plugwright.config.manifests import DaemonTarget, PluginTarget
from plugwright.grammars import DNS_LABEL
from plugwright.sdk.serve_settings import ServeMode
from plugwright.version import __version__

__all__ = ["manifest"]

_NAME = "plugwright"
_MOCK = """\
resources:
- mock:
    count: 10
    memory: 40Gi
    model: Mock-A100
    numa: 2
  name: mock/gpu
"""


def _dns_label(_: click.Context, __: click.Parameter, value: str) -> str:
    if not DNS_LABEL.fullmatch(value):
        raise click.BadParameter(f"must have lower-case letters, digits and '-', got {value!r}")
    return value


@click.command(epilog="Example:  plugwright manifest -c plugwright.yaml | kubectl apply -f -")
@click.option("-c", "--config", "path", type=click.Path(path_type=Path),
              help="Configuration to deploy.  [default: ten mock GPUs, as mock/gpu]")  # fmt: skip
@click.option("--namespace", default=_NAME, show_default=True, callback=_dns_label, help="Namespace of the objects.")
@click.option("--image", default="",
              show_default=f"{_NAME}:{__version__}, or {_NAME}-tools:{__version__} for NVIDIA GPUs",
              help="Image that the nodes can pull. Build it yourself: no image is published.")  # fmt: skip
@click.option(
    "--plugin", default="", metavar="MODULE:CLASS", help="Plugin in the image to serve, instead of a configuration."
)
@click.option("--name", default=_NAME, show_default=True, callback=_dns_label, help="Name of the objects.")
@click.option("--host-path", "host_paths", multiple=True, metavar="DIR",
              help="Directory of the node that the plugin reads; may be repeated.")  # fmt: skip
@click.option("--serve", type=click.Choice([ServeMode.DRA.value, ServeMode.BOTH.value]),
              help="Serve the plugin through DRA, or through both APIs.")  # fmt: skip
@click.option("--resource", "resources", multiple=True, metavar="NAME",
              help="Resource that the plugin serves, for --serve; may be repeated.")  # fmt: skip
@click.pass_context
def manifest(context: click.Context, /, path: Path | None, namespace: str, image: str, **_: object) -> None:
    """Print manifests to run plugwright on every node: the Helm chart's objects with its default values.

    `kubectl delete` removes the objects, and `plugwright node remove --stale --all-nodes --wait` the resources that
    remain on the nodes.
    """
    target = DaemonTarget(namespace, context.params["name"], image)
    plugin = _plugin(context)
    if plugin is None:
        config = schema.load(path) if path is not None else schema.read("plugwright.yaml", _MOCK)
        text = path.read_text(encoding="utf-8") if path else _MOCK
        made = manifests.for_file(text, config.file, target)
    else:
        made = manifests.for_plugin(plugin, target)
    click.echo("---\n".join(yaml.dump(each, Dumper=Dumper, sort_keys=False, width=120) for each in made), nl=False)


def _plugin(context: click.Context) -> PluginTarget | None:
    """The plugin named by the flags; rejects contradicting flags."""
    flags = context.params
    if not flags["plugin"]:
        if flags["name"] != _NAME or flags["host_paths"] or flags["serve"] or flags["resources"]:
            raise click.UsageError("--name, --host-path, --serve and --resource are for --plugin")
        return None
    if flags["path"] is not None:
        raise click.UsageError("a plugin is served without a file: leave out --config")
    for directory in flags["host_paths"]:
        if not directory.startswith("/"):
            raise click.UsageError(f"--host-path must be absolute, got {directory!r}")
    if bool(flags["serve"]) != bool(flags["resources"]):
        raise click.UsageError("--serve needs --resource, and --resource needs --serve: drivers are named after them")
    serve = ServeMode(flags["serve"]) if flags["serve"] else ServeMode.DEVICE_PLUGIN
    return PluginTarget(flags["plugin"], flags["host_paths"], serve, flags["resources"])
