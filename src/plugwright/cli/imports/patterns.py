"""The texts that a regular expression stands for, where they are few.

Enough of Go's syntax for names of device nodes. An endless repetition of digits is taken for the numbers from 0 to 15;
anything else that has no end, and anything not understood, is None: not to be written out.
"""

import string
from itertools import product

__all__ = ["MOST", "NUMBERS", "texts_of"]

MOST = 64
NUMBERS = 16
_CLASSES = {"d": string.digits, "w": string.digits + string.ascii_letters + "_"}


class _Endless(Exception):
    """This cannot be written out."""


def texts_of(pattern: str) -> list[str] | None:
    """Every text that `pattern` matches from end to end, sorted; anchors at its ends are passed over."""
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    try:
        texts, rest = _alternatives(inner, 0)
    except (_Endless, IndexError, ValueError, RecursionError):
        return None
    return sorted(texts) if rest == len(inner) else None


def _alternatives(text: str, at: int) -> tuple[set[str], int]:
    found, at = _sequence(text, at)
    while at < len(text) and text[at] == "|":
        more, at = _sequence(text, at + 1)
        found |= more
    return _few(found), at


def _sequence(text: str, at: int) -> tuple[set[str], int]:
    found = {""}
    while at < len(text) and text[at] not in "|)":
        atom, at = _atom(text, at)
        repeated, at = _repeated(atom, text, at)
        if len(found) * len(repeated) > MOST:
            raise _Endless
        found = {first + second for first, second in product(found, repeated)}
    return found, at


def _atom(text: str, at: int) -> tuple[set[str], int]:
    if text[at] == "(":
        start = at + 3 if text.startswith("(?:", at) else at + 1
        found, at = _alternatives(text, start)
        if text[at] != ")":
            raise _Endless
        return found, at + 1
    if text[at] == "[":
        return _character_class(text, at + 1)
    if text[at] == "\\":
        return _escaped(text[at + 1]), at + 2
    if text[at] in ".^$*+?{})]":
        raise _Endless
    return {text[at]}, at + 1


def _escaped(character: str) -> set[str]:
    if character in _CLASSES:
        return set(_CLASSES[character])
    if character.isalnum():
        raise _Endless
    return {character}


def _character_class(text: str, at: int) -> tuple[set[str], int]:
    found: set[str] = set()
    if text[at] in "^]":
        raise _Endless
    while text[at] != "]":
        if text[at] == "\\":
            found |= _escaped(text[at + 1])
            at += 2
        elif text[at] == "[":
            raise _Endless
        elif text[at + 1] == "-" and text[at + 2] != "]":
            found |= {chr(code) for code in range(ord(text[at]), ord(text[at + 2]) + 1)}
            at += 3
        else:
            found.add(text[at])
            at += 1
    return _few(found), at + 1


def _repeated(atom: set[str], text: str, at: int) -> tuple[set[str], int]:
    sign = text[at : at + 1]
    if sign == "?":
        return atom | {""}, at + 1
    if sign and sign in "*+":
        if atom != set(string.digits):
            raise _Endless
        return {str(number) for number in range(NUMBERS)}, at + 1
    if sign == "{":
        end = text.index("}", at)
        least, comma, most = text[at + 1 : end].partition(",")
        return _times(atom, int(least), int(most) if comma else int(least)), end + 1
    return atom, at


def _times(atom: set[str], least: int, most: int) -> set[str]:
    if most > len(str(MOST)) + 1 or len(atom) ** most > MOST:
        raise _Endless
    return {"".join(parts) for count in range(least, most + 1) for parts in product(sorted(atom), repeat=count)}


def _few(texts: set[str]) -> set[str]:
    if len(texts) > MOST:
        raise _Endless
    return texts
