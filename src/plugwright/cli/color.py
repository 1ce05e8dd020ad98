"""Whether the output is coloured, according to the user's environment."""

import os

__all__ = ["color_choice"]


def color_choice() -> bool | None:
    """The user's choice by NO_COLOR, TERM=dumb or FORCE_COLOR; None leaves it to the terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR", "0") not in ("", "0") else None
