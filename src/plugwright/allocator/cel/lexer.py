"""Tokens of CEL source."""

import re

from msgspec import Struct

from plugwright.allocator.cel.syntax_tree import InvalidExpression, located

__all__ = ["RESERVED", "Token", "tokenize", "unquoted"]

RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)

_QUOTED = (
    r"""(?:[rR](?:\"\"\"(?s:.)*?\"\"\"|\'\'\'(?s:.)*?\'\'\'|"[^"\n\r]*"|'[^'\n\r]*')"""
    r"""|\"\"\"(?:\\(?s:.)|[^\\])*?\"\"\"|\'\'\'(?:\\(?s:.)|[^\\])*?\'\'\'"""
    r"""|"(?:\\.|[^\\"\n\r])*"|'(?:\\.|[^\\'\n\r])*')"""
)
_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\n\f]+|//[^\n]*)
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<uint>(?:0x[0-9a-fA-F]+|\d+)[uU])
    |(?P<int>0x[0-9a-fA-F]+|\d+)
    |(?P<bytes>[bB]QUOTED)
    |(?P<string>QUOTED)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<escaped>`[A-Za-z0-9_./\ -]+`)
    |(?P<operator>==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}])
    """.replace("QUOTED", _QUOTED),
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(
    r"""\\(?:(?P<one>[abfnrtv\\'"`?])|[xX](?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"""
    r"""|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.?))""",
    re.DOTALL,
)
_ONE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Token(Struct, frozen=True):
    kind: str  # int, uint, float, string, bytes, name, escaped, operator or end
    text: str
    at: int

    def shown(self) -> str:
        return "'<EOF>'" if self.kind == "end" else f"'{self.text}'"


def tokenize(source: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None or match.lastgroup is None:
            message = f"Syntax error: token recognition error at: '{source[at:].splitlines()[0]}'"
            raise InvalidExpression(located(source, [(at, message)]))
        if match.lastgroup != "skip":
            tokens.append(Token(match.lastgroup, match[0], at))
        at = match.end()
    return [*tokens, Token("end", "", len(source))]


def unquoted(text: str, *, as_bytes: bool) -> str:
    """The content of a string literal; of a bytes literal, one character for each byte. Raises ValueError."""
    raw = text[0] in "rR"
    text = text[1:] if raw else text
    quotes = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    text = text[quotes:-quotes]
    if as_bytes:
        text = text.encode().decode("latin-1")
    if raw or "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match["bad"] is not None or (as_bytes and (match["u"] or match["U"])):
            raise ValueError(f"Syntax error: token recognition error at: '{match[0]}'")
        if match["one"]:
            return _ONE.get(match["one"], match["one"])
        code = int(match["octal"], 8) if match["octal"] else int(match["x"] or match["u"] or match["U"], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("invalid unicode code point")
        return chr(code)

    return _ESCAPE.sub(replace, text)
