"""Source to syntax tree: CEL's grammar by precedence climbing."""

import struct

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.cel_values import Uint
from plugwright.allocator.cel.lexer import RESERVED, Token, tokenize, unquoted
from plugwright.allocator.cel.macros import MacroError, expand
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    Ident,
    InvalidExpression,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
    children,
    located,
    qualified_name,
)

__all__ = ["parse"]

_NESTING = 100  # cel-go's limit is 250; ours stays within Python's own limit for any caller
_CHAIN = 250  # operators or members in a row, each of which deepens the tree
_WEIGHT = 20_000  # optMap() evaluates its target twice, so nesting it doubles the work

_OPERAND = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
_LEVELS: list[dict[str, str]] = [
    {"||": "_||_"},
    {"&&": "_&&_"},
    {"<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in"},
    {"+": "_+_", "-": "_-_"},
    {"*": "_*_", "/": "_/_", "%": "_%_"},
]
_PRECEDENCE = {token: (level, name) for level, names in enumerate(_LEVELS) for token, name in names.items()}
_CONSTANTS = {"true": (True, celtypes.BOOL), "false": (False, celtypes.BOOL), "null": (None, celtypes.NULL)}


def parse(source: str) -> Node:
    """The syntax tree with macros expanded. Raises `InvalidExpression`."""
    return _Parser(source).parse()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = tokenize(source)
        self._position = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._expression()
        if self._next.kind != "end":
            raise self._error(self._next, f"Syntax error: extraneous input {self._next.shown()} expecting <EOF>")
        if _weight(node, {}) > _WEIGHT:
            raise InvalidExpression(f"expression has more than {_WEIGHT} parts after the expansion of macros")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _advance(self) -> Token:
        self._position += 1
        return self._tokens[self._position - 1]

    def _at(self, text: str) -> bool:
        token = self._next
        return token.text == text and token.kind == "operator"

    def _accept(self, text: str) -> bool:
        if self._at(text):
            self._position += 1
            return True
        return False

    def _expect(self, text: str, expecting: str = "") -> Token:
        if not self._at(text):
            shown = self._next.shown()
            message = f"mismatched input {shown} expecting {expecting}" if expecting else f"missing '{text}' at {shown}"
            raise self._error(self._next, f"Syntax error: {message}")
        return self._advance()

    def _error(self, where: Token | Node, message: str) -> InvalidExpression:
        return InvalidExpression(located(self._source, [(where.at, message)]))

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > _NESTING:
            raise self._error(self._next, f"expression recursion limit exceeded: {_NESTING}")
        node = self._binary(0)
        if self._at("?"):
            question = self._advance()
            yes = self._binary(0)
            self._expect(":")
            node = CallNode(at=question.at, function="_?_:_", target=None, args=[node, yes, self._expression()])
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        """Operators of this level and above, to the left; chains of || and && become balanced trees."""
        node = self._unary()
        chain = 0
        while True:
            token = self._next
            found = _PRECEDENCE.get(token.text) if token.kind in ("operator", "name") else None
            if found is None or found[0] < level:
                return node
            if found[0] < 2:
                node = self._logical(node, token.text, found)
                continue
            chain = self._counted(chain)
            self._advance()
            right = self._binary(found[0] + 1)
            node = CallNode(at=token.at, function=found[1], target=None, args=[node, right])

    def _logical(self, first: Node, operator: str, found: tuple[int, str]) -> Node:
        terms, places = [first], []
        while self._at(operator):
            places.append(self._advance().at)
            terms.append(self._binary(found[0] + 1))

        def balanced(low: int, high: int) -> Node:
            middle = (low + high + 1) // 2
            left = terms[middle] if middle == low else balanced(low, middle - 1)
            right = terms[middle + 1] if middle == high else balanced(middle + 1, high)
            return CallNode(at=places[middle], function=found[1], target=None, args=[left, right])

        return balanced(0, len(places) - 1)

    def _counted(self, chain: int) -> int:
        if chain >= _CHAIN:
            raise self._error(self._next, f"expression recursion limit exceeded: {_CHAIN}")
        return chain + 1

    def _unary(self) -> Node:
        token = self._next
        if token.kind != "operator" or token.text not in "!-":
            return self._members(self._primary())
        if token.text == "-" and self._tokens[self._position + 1].kind in ("int", "float"):
            self._advance()
            return self._members(self._number(self._advance(), token))
        count = 0
        while self._at(token.text):
            self._advance()
            count += 1
        node = self._members(self._primary()) if token.text == "-" or not self._at("-") else self._unary()
        return CallNode(at=token.at, function=f"{token.text}_", target=None, args=[node]) if count % 2 else node

    def _members(self, node: Node) -> Node:
        chain = 0
        while self._next.kind == "operator" and self._next.text in ".[":
            chain = self._counted(chain)
            token = self._advance()
            node = self._index(node, token) if token.text == "[" else self._member(node, token)
        return node

    def _index(self, node: Node, token: Token) -> Node:
        function = "_[?_]" if self._accept("?") else "_[_]"
        key = self._expression()
        self._expect("]", "{']'}")
        return CallNode(at=token.at, function=function, target=None, args=[node, key])

    def _member(self, node: Node, token: Token) -> Node:
        optional = self._accept("?")
        name = self._advance()
        is_escaped = name.kind == "escaped"
        if not is_escaped and (name.kind != "name" or name.text in ("in", "true", "false", "null")):
            raise self._error(name, f"Syntax error: mismatched input {name.shown()} expecting IDENTIFIER")
        field = name.text.strip("`")
        if optional:
            key = Literal(at=name.at, value=field, type=celtypes.STRING)
            return CallNode(at=token.at, function="_?._", target=None, args=[node, key])
        if is_escaped:
            return Select(at=token.at, operand=node, field=field)
        if self._at("("):
            return self._call(name.text, node)
        if self._at("{") and (path := qualified_name(node)):
            return self._struct(f"{path}.{name.text}")
        return Select(at=token.at, operand=node, field=name.text)

    def _call(self, function: str, target: Node | None) -> Node:
        opening = self._expect("(")
        call = CallNode(at=opening.at, function=function, target=target, args=self._arguments(")"))
        try:
            return expand(call)
        except MacroError as error:
            raise self._error(error.node, str(error)) from None

    def _arguments(self, closing: str) -> list[Node]:
        args: list[Node] = []
        while not self._at(closing):
            args.append(self._expression())
            if not self._accept(","):
                break
            if self._at(closing):
                raise self._error(self._next, f"Syntax error: mismatched input '{closing}' expecting {_OPERAND}")
        self._expect(closing, f"{{'{closing}', ','}}")
        return args

    def _primary(self) -> Node:
        token = self._advance()
        if token.kind in ("int", "uint", "float"):
            return self._number(token, None)
        if token.kind in ("string", "bytes"):
            return self._quoted(token)
        if token.kind == "name" and token.text != "in":
            return self._name(token, "")
        if token.text in "([{." and token.kind == "operator":
            return self._opened(token)
        raise self._error(token, f"Syntax error: mismatched input {token.shown()} expecting {_OPERAND}")

    def _opened(self, token: Token) -> Node:
        if token.text == "(":
            node = self._expression()
            self._expect(")")
            return node
        if token.text == "[":
            return self._list(token)
        if token.text == "{":
            return self._map(token)
        name = self._advance()
        if name.kind != "name":
            raise self._error(name, f"Syntax error: mismatched input {name.shown()} expecting IDENTIFIER")
        return self._name(name, ".")

    def _name(self, token: Token, dot: str) -> Node:
        if token.text in _CONSTANTS and not dot:
            value, kind = _CONSTANTS[token.text]
            return Literal(at=token.at, value=value, type=kind)
        if token.text in RESERVED:
            raise self._error(token, f"reserved identifier: {token.text}")
        if self._at("("):
            return self._call(dot + token.text, None)
        if self._at("{"):
            return self._struct(token.text)
        return Ident(at=token.at, name=dot + token.text)

    def _struct(self, name: str) -> Node:
        opening = self._expect("{")
        while not self._accept("}"):
            if self._advance().kind == "end":
                raise self._error(self._tokens[-1], "Syntax error: mismatched input '<EOF>' expecting '}'")
        return StructNode(at=opening.at, name=name)

    def _list(self, opening: Token) -> Node:
        elements: list[Node] = []
        optional = set()
        is_empty = self._accept(",")  # `[,]`
        while not is_empty and not self._at("]"):
            if self._accept("?"):
                optional.add(len(elements))
            elements.append(self._expression())
            if not self._accept(","):
                break
        self._expect("]", "{']', ','}")
        return ListNode(at=opening.at, elements=elements, optional=frozenset(optional))

    def _map(self, opening: Token) -> Node:
        entries = []
        is_empty = self._accept(",")
        while not is_empty and not self._at("}"):
            optional = self._accept("?")
            key = self._expression()
            self._expect(":", "':'")
            entries.append((key, self._expression(), optional))
            if not self._accept(","):
                break
        self._expect("}", "{'}', ','}")
        return MapNode(at=opening.at, entries=entries)

    def _number(self, token: Token, sign: Token | None) -> Node:
        text = f"{sign.text if sign else ''}{token.text}"
        at = sign.at if sign else token.at
        if token.kind == "float":
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise self._error(token, "invalid double literal")
            return Literal(at=at, value=value, type=celtypes.DOUBLE)
        digits = text.rstrip("uU")
        number = (
            int(digits, 16) if "0x" in digits else int(digits) if len(digits) < struct.calcsize("q") * 4 else 1 << 64
        )
        if token.kind == "uint":
            if number >= 1 << 64:
                raise self._error(token, "invalid uint literal")
            return Literal(at=at, value=Uint(number), type=celtypes.UINT)
        if not -(1 << 63) <= number < 1 << 63:
            raise self._error(token, "invalid int literal")
        return Literal(at=at, value=number, type=celtypes.INT)

    def _quoted(self, token: Token) -> Node:
        as_bytes = token.kind == "bytes"
        try:
            text = unquoted(token.text[1:] if as_bytes else token.text, as_bytes=as_bytes)
        except ValueError as error:
            raise self._error(token, str(error)) from None
        if as_bytes:
            return Literal(at=token.at, value=text.encode("latin-1"), type=celtypes.BYTES)
        return Literal(at=token.at, value=text, type=celtypes.STRING)


def _weight(node: Node, known: dict[int, int]) -> int:
    """The size of the tree, with shared parts counted as often as they are evaluated."""
    if id(node) not in known:
        known[id(node)] = 1 + sum(_weight(each, known) for each in children(node))
    return known[id(node)]
