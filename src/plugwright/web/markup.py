"""HTML of untrusted texts: each is one printable, escaped line, isolated from the direction of other texts."""

import re
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import urlencode

from plugwright.fleet.claim_users import FleetHolder
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.text import clean

__all__ = [
    "Html", "attribute", "command", "device_link", "device_url", "holder_link", "moment", "node_link", "pod_link",
    "table", "text", "url",
]  # fmt: skip

Html = str  # escaped
_LONGEST = 300  # characters of a value
_LONG_WORD = re.compile(r"[^\s-]{30}")  # a browser breaks it anywhere; others stay whole
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def text(value: object, limit: int = _LONGEST) -> Html:
    """A text for the body of a page; `bdi` keeps right-to-left words from changing the direction of other text."""
    words = clean(value, limit)
    kind = ' class="long"' if _LONG_WORD.search(words) else ""
    return f"<bdi{kind}>{escape(words)}</bdi>"


def moment(value: str) -> Html:
    """A time in RFC 3339 to the second; the script adds how long ago it was."""
    found = _MOMENT.fullmatch(value)
    if found is None:
        return text(value or "unknown")
    return f'<time datetime="{value}">{found[1]} {found[2]}Z</time>'


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
        return pod_link(holder.namespace, holder.pod, holder.name) + admin
    if holder.claim:
        return f'<a href="{url("/claims", q=f"{holder.namespace}/{holder.claim}")}">{text(holder.name)}</a>{admin}'
    return text(holder.name) + admin


def pod_link(namespace: str, pod: str, words: str) -> Html:
    return f'<a href="{url("/", q=f"{namespace}/{pod}")}">{text(words)}</a>'


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
