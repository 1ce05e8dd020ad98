"""Makes untrusted texts and errors safe to show: in a reason, a log line, a table or a message to the kubelet.

A device's reason can quote a file name that is not UTF-8, an HTTP server's text or a driver's buffer. None of these can
break the list that contains them, write to an operator's terminal or fill a log.
"""

from collections.abc import Sequence

__all__ = ["clean", "described", "escaped", "fitted", "line_of", "quoted"]

_CUT = "…"
_CALLERS = (  # of an author's code
    "plugwright.sdk.plugin_calls",
    "plugwright.system.",
    "plugwright.cli.",
    "importlib",
    "_frozen_importlib",
    "asyncio.",
    "threading",
    "concurrent.",
)


def clean(text: object, limit: int = 1024) -> str:
    """`text` in one printable line of at most `limit` characters; never raises.

    White space becomes single spaces. Characters that cannot be printed (control characters, C1, bidirectional
    overrides, NUL) or sent (half of a surrogate pair) are shown as their escapes: `\\x1b`, `\\u202e`, `\\udcff`.
    """
    words = " ".join(_string(text).split())
    shown = escaped(words[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - len(_CUT)] + _CUT


def escaped(text: str) -> str:
    """`text` with escapes for characters that cannot be printed or sent; its length is not limited."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def fitted(text: object, size: int) -> str:
    """Like `clean`, in at most `size` bytes of UTF-8."""
    shown = clean(text, size)
    encoded = shown.encode()
    if len(encoded) <= size:
        return shown
    # A character cut in half is omitted.
    return encoded[: size - len(_CUT.encode())].decode(errors="ignore") + _CUT


def described(cause: BaseException) -> str:
    """An exception's class and text."""
    kind, text = type(cause).__name__, clean(cause)
    return f"{kind}: {text}" if text and text != kind else kind


def line_of(cause: BaseException) -> str:
    """The innermost line of an author's code in a traceback: not that of a library it called, nor of its caller."""
    where, author, trace = "", "", cause.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if not author and not module.startswith(_CALLERS):
            author = package
        if author and package == author:
            # The path has as many parts as the module's name: `acme/tape.py` for `acme.tape`.
            depth = module.count(".") + (2 if code.co_filename.endswith("__init__.py") else 1)
            where = f"{'/'.join(code.co_filename.split('/')[-depth:])}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return where


def quoted(names: Sequence[str], most: int = 8) -> str:
    """The first names, and the number of further ones."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _string(text: object) -> str:
    try:
        # A plain str, because a subclass can override methods.
        return str.__str__(text) if isinstance(text, str) else str(text)
    except Exception:  # noqa: BLE001  an author's object whose __str__ raises is still named
        return type(text).__name__


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
