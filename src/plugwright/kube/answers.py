"""Responses of an API server: read with limits, checked for their shape, refusals as exceptions.

A proxy, a wrong address or a failing server can send anything. A response of the wrong shape raises `MalformedMessage`
in its call, and no response uses more memory than its limit.
"""

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from plugwright.errors import MalformedMessage, MessageTooLarge, PeerGone, PeerRefused

__all__ = [
    "LARGE",
    "SMALL",
    "AnswerLimits",
    "Document",
    "ListPages",
    "check_encoding",
    "checked_change",
    "checked_object",
    "checked_page",
    "decoded",
    "object_name",
    "read_answer",
    "refusal",
]

Document = dict[str, Any]


class AnswerLimits(msgspec.Struct, frozen=True):
    """The most bytes of an answer and of one change in a watch, JSON values in either, and objects of a list."""

    answer: int
    change: int
    values: int
    objects: int


# A page of 500 pods has some 10 MiB; etcd stores no object of more than 1.5 MiB by default.
LARGE = AnswerLimits(answer=64 * 2**20, change=16 * 2**20, values=2**63, objects=2**63)
# For a daemon: a value takes up to 120 bytes when decoded. It lists and watches only the slices of one driver on one
# node, which are at most half as large; 2,000 of them have 128,000 devices.
SMALL = AnswerLimits(answer=3 * 2**20, change=3 * 2**19, values=100_000, objects=2_000)
_REFUSAL_LIMIT = 2**16  # bytes that are read of a refusal
_CHUNK = 2**16
_FEWER = 8  # times as few objects in a page, if one is too large
_MOST_PAGES = 2000  # of one list: a million objects
_MOST_SHORT_PAGES = 50  # pages before the last that have fewer objects than requested
_CHANGES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)  # whole strings, so that none in them counts
_DEPTH_LIMIT = 300  # Python's own limit is below 1000


def read_answer(answer: http.client.HTTPResponse, limits: AnswerLimits = LARGE) -> bytes:
    """The body of an answer, and no more than the beginning of a refusal; raises `MessageTooLarge` beyond a limit."""
    if answer.status >= 300:
        return answer.read(_REFUSAL_LIMIT)
    check_encoding(answer)
    if answer.length is not None and answer.length > limits.answer:
        raise _too_large("an answer", answer.length, limits.answer)
    parts, size = [], 0
    while part := answer.read(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > limits.answer:
            raise _too_large("an answer", size, limits.answer)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


def check_encoding(answer: http.client.HTTPResponse) -> None:
    """Rejects a compressed response, which we never request: a small one can expand to a huge one."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise MalformedMessage(f"the answer must not be compressed, got Content-Encoding {encoding!r:.80}")


def decoded(text: bytes, limits: AnswerLimits = LARGE) -> Any:
    """The document; a single overly nested object in it must not cost the whole list."""
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > limits.values:
        raise MessageTooLarge(f"an answer must have at most {limits.values} values, got {values}")
    try:
        try:
            return json.loads(text)
        except RecursionError:
            return json.loads(_without_depths(text))
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"the answer must be JSON, got {text[:40]!r}: {error!s:.200}") from error


def object_name(path: str) -> str:
    """The name of the object at a path, or empty if the path leads to a list or something else."""
    parts = [unquote(part) for part in path.partition("?")[0].split("/")]
    match parts:
        case ["", "api", _, *rest] | ["", "apis", _, _, *rest]:
            if rest[:1] == ["namespaces"] and len(rest) > 2:
                rest = rest[2:]
            return rest[1] if len(rest) > 1 and rest[2:3] != ["proxy"] else ""
    return ""


def checked_object(document: Any, name: str = "") -> Document:
    """The document if it is an object, and its member of this name if there is one."""
    if not isinstance(document, dict):
        raise MalformedMessage(f"the answer must be a JSON object, got {_described(document)}")
    if name and _metadata(document).get("name") != name:
        raise MalformedMessage(f"the answer must be the object {name!r}, got {_described(document)}")
    return document


def checked_page(document: Any) -> tuple[list[Document], str]:
    """The objects of a page of a list, and the list's resource version."""
    page = checked_object(document)
    items, metadata = page.get("items"), page.get("metadata")
    if "items" not in page or not isinstance(items, list | None) or not isinstance(metadata, dict | None):
        raise MalformedMessage(f"the answer must be a list with items, got {_described(document)}")
    for item in items or ():
        if not isinstance(_metadata(item).get("name"), str):
            raise MalformedMessage(f"each item of a list must be an object with a name, got {_described(item)}")
    return items or [], str((metadata or {}).get("resourceVersion") or "")


class ListPages:
    """The pages of one list of `path`; an endless list is rejected.

    Pages before the last can have fewer objects than requested, but a server fills most of them.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.more: dict[str, str] = {}  # the query parameters for the next page; empty after the last page
        self._path, self.limit = path, limit
        self._tokens: set[str] = set()
        self._short = 0

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of the next page."""
        return {"limit": str(self.limit), **self.more}

    def shrink(self) -> bool:
        """After an oversized page: False if the pages have one object already."""
        has_room = self.limit > 1
        self.limit = max(1, self.limit // _FEWER)
        return has_room

    def take(self, page: Any) -> tuple[list[Document], str]:
        """The objects of a page and the resource version; raises `MalformedMessage`."""
        items, version = checked_page(page)
        token = str((page.get("metadata") or {}).get("continue") or "")
        self.more = {"continue": token} if token else {}
        if token:
            self._short += len(items) < self.limit
            if token in self._tokens:
                raise MalformedMessage(f"the pages of {self._path} must end, got the same page twice")
            self._tokens.add(token)
            if len(self._tokens) > _MOST_PAGES or self._short > _MOST_SHORT_PAGES:
                raise MalformedMessage(f"the pages of {self._path} must end, got {len(self._tokens)} pages and more")
        return items, version


def checked_change(line: bytes, url: str, limits: AnswerLimits = LARGE) -> tuple[str, Document]:
    """The type and the object of a change in a watch; raises the refusal if the change is an error."""
    if len(line) > limits.change:
        raise _too_large("a change in a watch", len(line), limits.change)
    if not line.endswith(b"\n"):
        raise PeerGone(f"{url} has ended the watch")
    change = decoded(line, limits)
    kind, content = (change.get("type"), change.get("object")) if isinstance(change, dict) else (None, None)
    if kind not in _CHANGES or not isinstance(content, dict):
        raise MalformedMessage(f"a watch must yield changes of objects, got {_described(change)}")
    if kind == "ERROR":
        code = content.get("code")
        raise refusal(code if isinstance(code, int) else 500, json.dumps(content))
    if kind != "BOOKMARK" and not isinstance(_metadata(content).get("name"), str):
        raise MalformedMessage(f"a watch must yield objects with a name, got {_described(content)}")
    return kind, content


def refusal(code: int, text: str) -> PeerRefused | PeerGone | MalformedMessage:
    """The error for a status code: most errors are a Status with a reason, those of proxies are plain text."""
    status = _status(text)
    message = str(status.get("message") or "") or text.strip()[:200] or http.client.responses.get(code, str(code))
    if code < 400:
        return MalformedMessage(f"the API server must answer itself, got a redirect ({code}): is the address right?")
    if code == 407:
        return PeerGone(f"the proxy rejects its credentials: {message}")
    if code == 429 or code >= 500:
        return PeerGone(f"the API server cannot answer now: {message}")
    if code == 401:
        return PeerRefused("Unauthorized", "the API server rejects these credentials; the token may have expired")
    if code in (403, 404):
        return PeerRefused("Forbidden" if code == 403 else "NotFound", message)
    return PeerRefused(str(status.get("reason") or code), message)


def _status(text: str) -> Mapping[str, object]:
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return status if isinstance(status, dict) else {}


def _metadata(document: object) -> Mapping[str, object]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _described(document: object) -> str:
    if isinstance(document, dict):
        names = ", ".join(map(str, list(document)[:5]))
        return (
            f"an object of kind {document['kind']!r:.40}"
            if "kind" in document
            else f"an object with {names or 'no members'}"
        )
    return "a list" if isinstance(document, list) else f"{document!r:.40}"


def _too_large(subject: str, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"{subject} must have at most {limit} bytes, got {size} or more")


def _without_depths(text: bytes) -> bytes:
    """The document, with overly nested values (such as parameters of a claim) replaced by null."""
    parts, depth, begin, kept = [], 0, 0, 0
    for token in _NESTING.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                begin = token.start() if depth == _DEPTH_LIMIT + 1 else begin
            case b"]" | b"}":
                depth -= 1
                if depth == _DEPTH_LIMIT:
                    parts += [text[kept:begin], b"null"]
                    kept = token.end()
    return b"".join((*parts, text[kept:]))
