"""The settings of `plugwright run`, and its simple calls: flags of the table with their values, and variables.

Every node's daemon is called simply, and click would cost it 1.2 MiB and a twentieth of its start; `cli.run` makes
click's options from the same table. Calls with any other content, especially mistakes, are left to click and its
messages.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plugwright.cli import logs
from plugwright.sdk.settings import Registration

__all__ = ["CONFIG", "SETTINGS", "Kind", "RunSetting", "addresses", "plain_call", "seconds"]

Kind = type[Path] | type[str] | type[float] | type[tuple[str, ...]] | tuple[str, ...]
"""A path, a text, seconds, addresses, or the choices."""


class RunSetting(NamedTuple):
    """One setting: a flag, and the variables that can also set it, of which the first non-empty one counts."""

    flag: str
    help: str | None
    kind: Kind = Path
    default: str | None = None  # in the notation of the command line
    shows_default: bool | str = False
    metavar: str | None = None
    variables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def envvars(self) -> tuple[str, ...]:
        return self.variables or (f"PLUGWRIGHT_{self.name.upper()}",)

    def value(self, text: str | None) -> object:
        """The value of a text; `ValueError` if the text is invalid."""
        if text is None or self.kind is str:
            return text
        if isinstance(self.kind, tuple):
            return self.kind[self.kind.index(text)]
        if self.kind is float:
            return seconds(text)
        return Path(text) if self.kind is Path else addresses(text)


CONFIG = RunSetting(
    "--config", "The resources to serve.", default="/etc/plugwright/plugwright.yaml", shows_default=True
)
SETTINGS = (
    RunSetting("--kubelet-dir", "The kubelet's directory.", default="/var/lib/kubelet", shows_default=True),
    RunSetting("--device-plugins-dir", "Device-plugins directory of the kubelet.  [default: under --kubelet-dir]"),
    RunSetting("--registration", "Call the kubelet, or be found by its plugin watcher.",
               tuple(mode.value for mode in Registration), "direct", shows_default=True),
    RunSetting("--node-name", "Name of this node in the API server, for resources served by claims.", str, "",
               variables=("PLUGWRIGHT_NODE_NAME", "NODE_NAME")),
    RunSetting("--pod-uid", "UID of this pod; needed for rolling updates with maxSurge.", str, "",
               variables=("PLUGWRIGHT_POD_UID", "POD_UID")),
    RunSetting("--kubeconfig", "Kubeconfig for resources served through DRA.  [default: the pod's, then KUBECONFIG]"),
    RunSetting("--release", "Owner of the served resources and their state: NAMESPACE/NAME.", str, "plugwright",
               shows_default=True),
    RunSetting("--state-dir", "State of each release: last good configuration, incidents, splits.",
               default="/var/lib/plugwright", shows_default=True),
    RunSetting("--node-dir", "Cordons and owners, shared by all daemons of the node.  [default: --state-dir]"),
    RunSetting("--control-socket", "Socket for `plugwright status` and other commands; mode 0600.",
               default="/run/plugwright/control.sock", shows_default=True),
    RunSetting("--listen", "Answer /healthz, /readyz and /metrics here.  [default: off]", str, "", metavar="HOST:PORT"),
    RunSetting("--node-addresses",
               "Addresses from which the kubelet probes; `gateway` is the default gateway.",
               tuple[str, ...], "", metavar="ADDRESS,..."),
    RunSetting("--tls-cert", "Certificate for --listen, read again when it changes.  [default: no TLS]"),
    RunSetting("--tls-key", "Private key of the certificate."),
    RunSetting("--metrics-token-file", "File with the bearer token that /metrics requires.  [default: no token]"),
    RunSetting("--listen-report", "Also answer /node-report and /history on --listen, to every client.",
               ("off", "on"), "off", shows_default=True),
    RunSetting("--watchdog", "Print the stacks of all threads and exit, if the event loop hangs for this long.",
               float, "0", shows_default="off", metavar="TIME"),
    RunSetting("--log-format", "Log format.", logs.FORMATS, "human", shows_default=True),
    RunSetting("--log-level", "Log level.", logs.LEVELS, "info", shows_default=True),
)  # fmt: skip
_FLAGS = {"-c": CONFIG, **{setting.flag: setting for setting in (CONFIG, *SETTINGS)}}


def plain_call(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, object] | None:
    """The values of all settings by name, for these arguments of `run`; None if click must parse them."""
    texts: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        text = text if equals else next(remaining, "-")
        if flag not in _FLAGS or (not equals and text.startswith("-")):
            return None
        texts[_FLAGS[flag].name] = text
    for setting in _FLAGS.values():
        variable = next((environment[name] for name in setting.envvars if environment.get(name)), setting.default)
        if variable is not None:
            texts.setdefault(setting.name, variable)
    try:
        return {setting.name: setting.value(texts.get(setting.name)) for setting in _FLAGS.values()}
    except ValueError:
        return None


def addresses(text: str) -> tuple[str, ...]:
    """The items of `10.0.0.7,gateway`."""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def seconds(text: str) -> float:
    """A time without a unit; ValueError for any other, which is left to click."""
    if not text.replace(".", "", 1).isdecimal() or not text[0].isdecimal() or not text[-1].isdecimal():
        raise ValueError(f"must be a number of seconds, 0 or more, got {text!r}")
    return float(text)
