"""Texts from outside, made safe to show: in a reason, a log line, a table or a message to the kubelet.

A device's reason may quote a file name that is not UTF-8, an HTTP server's own words or a driver's buffer. None of them
may break the list it is in, write to an operator's terminal or fill a log.
"""

__all__ = ["clean", "escaped", "fitted"]

_CUT = "…"


def clean(text: object, limit: int = 1024) -> str:
    """`text` in one printable line of at most `limit` characters; never raises.

    White space becomes single spaces. Whatever cannot be printed (control characters, C1, bidirectional overrides, NUL)
    or cannot be sent (half of a surrogate pair) is shown as its escape: `\\x1b`, `\\u202e`, `\\udcff`.
    """
    words = " ".join(_string(text).split())
    shown = escaped(words[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - len(_CUT)] + _CUT


def escaped(text: str) -> str:
    """`text` with escapes for whatever cannot be printed or sent; its length is not limited."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def fitted(text: object, size: int) -> str:
    """As `clean`, in at most `size` bytes of UTF-8."""
    shown = clean(text, size)
    encoded = shown.encode()
    if len(encoded) <= size:
        return shown
    # Half a character at the cut is left out.
    return encoded[: size - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _string(text: object) -> str:
    try:
        # A plain str: a subclass may have methods of its own.
        return str.__str__(text) if isinstance(text, str) else str(text)
    except Exception:  # noqa: BLE001  an author's object whose __str__ raises is still named
        return type(text).__name__


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
