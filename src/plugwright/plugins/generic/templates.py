"""Texts with facts to be filled in, such as `{pci}`: checked when they are read, filled in for each device. Pure."""

import string
from collections.abc import Mapping

from plugwright.errors import InvalidValue

__all__ = ["FIELDS", "check", "fill"]

FIELDS = (
    "class", "device", "driver", "id", "index", "interface", "model", "name", "node", "nodes", "numa", "pci", "port",
    "product", "rdma", "resource", "serial", "uuid", "vendor",
)  # fmt: skip


def check(text: str) -> None:
    try:
        fields = [(name, extra or conversion) for _, name, extra, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise InvalidValue(f"not a template: {text!r}: {error}; a brace itself is written twice") from error
    for name, extra in fields:
        if name is not None and (name not in FIELDS or extra):
            raise InvalidValue(
                f"{text!r} has {{{name}}}, templates have {', '.join(FIELDS)}; a brace itself is written twice"
            )


def fill(text: str, facts: Mapping[str, str]) -> str:
    """What a device does not have is empty."""
    return text.format_map({**dict.fromkeys(FIELDS, ""), **facts})
