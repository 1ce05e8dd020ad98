"""Long lists in pieces: how far a client has read, as the token that it sends back. Pure."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plugwright.cluster.api.errors import bad_request
from plugwright.cluster.store import Object

__all__ = ["Page", "Token", "cut", "read", "write"]


class Token(msgspec.Struct, frozen=True):
    """The revision that is being listed, and the last object that was."""

    rv: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Page:
    items: Sequence[Object]
    rest: int  # how many come after it


def read(text: str) -> Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise bad_request(
            "invalid continue token: continue key is not valid: it is not one that this server has given out"
        ) from None


def write(revision: int, last: Object) -> str:
    metadata = last["metadata"]
    token = Token(revision, metadata.get("namespace", ""), metadata["name"])
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def cut(items: Sequence[Object], after: Token | None, limit: int | None) -> Page:
    """The items behind `after`, no more than `limit`; they are sorted."""
    if after:
        last = (after.namespace, after.name)
        items = [each for each in items if (each["metadata"].get("namespace", ""), each["metadata"]["name"]) > last]
    return Page(items[:limit], len(items[limit:]) if limit else 0)
