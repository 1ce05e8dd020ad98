"""HTML of untrusted texts: each is one printable, escaped line, isolated from the direction of other texts."""

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import urlencode

from plugwright.fleet.claim_users import FleetHolder
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.text import clean

__all__ = ["Html", "attribute", "command", "device_link", "device_url", "holder_link", "node_link", "table", "text"]

Html = str  # escaped
_LONGEST = 300  # characters of a value


def text(value: object, limit: int = _LONGEST) -> Html:
    """A text for the body of a page; `bdi` keeps right-to-left words from changing the direction of other text."""
    return f"<bdi>{escape(clean(value, limit))}</bdi>"


def attribute(value: object, limit: int = _LONGEST) -> Html:
    return escape(clean(value, limit), quote=True)


def url(path: str, **query: str) -> Html:
    return escape(f"{path}?{urlencode(query, errors='backslashreplace')}", quote=True)


def device_url(device: FleetDevice) -> Html:
    return url("/device", node=device.node, resource=device.resource, id=device.id)


def node_link(node: str) -> Html:
    return f'<a href="{url("/node", name=node)}">{text(node)}</a>'


def device_link(device: FleetDevice) -> Html:
    return f'<a href="{device_url(device)}">{text(device.id)}</a>'


def holder_link(holder: FleetHolder) -> Html:
    """A holder: a pod's name links to its devices, a claim's to the claims."""
    admin = " (monitors it)" if holder.admin_access else ""
    if holder.pod:
        return f'<a href="{url("/", q=f"{holder.namespace}/{holder.pod}")}">{text(holder.name)}</a>{admin}'
    return text(holder.name) + admin


def command(*words: str) -> Html:
    """A shell command with a copy button. Untrusted names are single words in it."""
    line = attribute(shlex.join(clean(word) for word in words), 2000)
    return f'<code>{line}</code> <button type="button" class="copy" data-copy="{line}">copy</button>'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Html]], empty: str) -> Html:
    """A table; cells are HTML, and the first of each row is its header."""
    lines = [_row(row) for row in rows]
    if not lines:
        return f"<p>{text(empty)}</p>"
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{attribute(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row(cells: Sequence[Html]) -> Html:
    first, *others = cells
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
