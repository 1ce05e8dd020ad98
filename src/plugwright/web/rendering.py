"""The current content of a view: complete, and in separately replaceable pieces."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html

__all__ = ["PageView", "Rendering", "changed_pieces"]


class Rendering(msgspec.Struct, frozen=True):
    """`pieces` are elements of `main`, by their id."""

    main: Html
    pieces: Mapping[str, Html] = {}


class PageView(Protocol):
    """A view for one address."""

    @property
    def title(self) -> str: ...

    def render(self, fleet: LiveFleet) -> Rendering: ...


def changed_pieces(before: Rendering, now: Rendering) -> dict[str, Html]:
    """The pieces that a browser showing `before` must replace to show `now`: `main` if pieces were added or removed."""
    if before.main == now.main:
        return {}
    if not now.pieces or before.pieces.keys() != now.pieces.keys():
        return {"main": now.main}
    changed = {name: piece for name, piece in now.pieces.items() if before.pieces[name] != piece}
    return changed or {"main": now.main}
