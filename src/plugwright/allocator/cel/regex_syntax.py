"""RE2's syntax: a pattern becomes the steps of a Pike machine."""

import unicodedata
from collections.abc import Callable

from msgspec import Struct

__all__ = ["RegexError", "Step", "program"]

_REPEAT = 1000
_SIZE = 20_000
_NESTING = 100
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": lambda c: "0" <= c <= "9",
    "s": lambda c: c in "\t\n\f\r ",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
}
_POSIX: dict[str, Callable[[str], bool]] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": lambda c: c.isascii(),
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": _CLASSES["d"],
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _CLASSES["w"],
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = frozenset(
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs".split()  # noqa: SIM905
)
_WORD = _CLASSES["w"]


class RegexError(Exception):
    """A pattern that RE2 refuses."""


class Step(Struct, eq=False):
    """One instruction: match a character, check a position, fork, or accept."""

    kind: str  # char, assert, split, match
    test: Callable[..., bool] | None = None
    to: tuple[int, ...] = ()


def _boundary(text: str, at: int) -> bool:
    before = at > 0 and _WORD(text[at - 1])
    after = at < len(text) and _WORD(text[at])
    return before != after


_ASSERTIONS: dict[str, Callable[[str, int], bool]] = {
    "A": lambda text, at: at == 0,
    "z": lambda text, at: at == len(text),
    "b": _boundary,
    "B": lambda text, at: not _boundary(text, at),
    "^m": lambda text, at: at == 0 or text[at - 1] == "\n",
    "$m": lambda text, at: at == len(text) or text[at] == "\n",
}

_Fragment = Callable[[int], int]  # writes steps that continue at the given step, returns their entry


class _RegexCompiler:
    """Parses a pattern and writes its steps from the end to the start."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._steps: list[Step] = []

    def program(self) -> list[Step]:
        fragment = self._alternation()
        if self._at < len(self._pattern):
            raise RegexError(f"error parsing regexp: unexpected ): `{self._pattern}`")
        self._steps = [Step("split")]
        entry = fragment(self._write("match"))
        self._steps[0].to = (entry,)
        return self._steps

    def _write(self, kind: str, test: Callable[..., bool] | None = None, *to: int) -> int:
        if len(self._steps) >= _SIZE:
            raise RegexError("error parsing regexp: expression too large")
        self._steps.append(Step(kind, test, to))
        return len(self._steps) - 1

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternation(self) -> _Fragment:
        self._depth += 1
        if self._depth > _NESTING:
            raise RegexError("error parsing regexp: expression nests too deeply")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        return lambda after: self._write("split", None, *[branch(after) for branch in branches])

    def _sequence(self) -> _Fragment:
        parts: list[_Fragment] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))

        def write(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return write

    def _repeated(self, part: _Fragment) -> _Fragment:
        repeats = 0
        while (bounds := self._bounds()) is not None:
            repeats += 1
            if repeats > 1:
                raise RegexError("error parsing regexp: invalid nested repetition operator")
            lazy = self._take("?") != ("U" in self._flags)
            part = self._times(part, *bounds, lazy=lazy)
        return part

    def _bounds(self) -> tuple[int, int | None] | None:
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(operator):
                return bounds
        return self._counted() if self._peek() == "{" else None

    def _counted(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,5}`; anything else is literal text."""
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not (low.isascii() and low.isdigit()) or not (high == "" or (high.isascii() and high.isdigit())):
            return None
        if max(len(low), len(high)) > 4 or max(int(low), int(high or 0)) > _REPEAT or (high and int(high) < int(low)):
            raise RegexError(f"error parsing regexp: invalid repeat count: `{self._pattern[self._at : end + 1]}`")
        self._at = end + 1
        return int(low), (int(high) if high else None if comma else int(low))

    def _times(self, part: _Fragment, low: int, high: int | None, *, lazy: bool) -> _Fragment:
        def fork(body: int, after: int) -> int:
            return self._write("split", None, *((after, body) if lazy else (body, after)))

        def write(after: int) -> int:
            if high is None:
                loop = self._write("split")
                body = part(loop)
                self._steps[loop].to = (after, body) if lazy else (body, after)
                after = loop
            else:
                end = after
                for _ in range(high - low):
                    after = fork(part(after), end)
            for _ in range(low):
                after = part(after)
            return after

        return write

    def _atom(self) -> _Fragment | None:
        character = self._peek()
        if character in "*+?":
            raise RegexError(f"error parsing regexp: missing argument to repetition operator: `{character}`")
        if character == "{" and self._counted() is not None:
            raise RegexError("error parsing regexp: missing argument to repetition operator")
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._character(self._set())
        if character == ".":
            return self._character((lambda c: True) if "s" in self._flags else (lambda c: c != "\n"))
        if character in "^$":
            multi = "m" in self._flags
            return self._assertion(f"{character}m" if multi else "A" if character == "^" else "z")
        if character == "\\":
            return self._escape()
        return self._character(self._literal(character))

    def _character(self, test: Callable[[str], bool]) -> _Fragment:
        return lambda after: self._write("char", test, after)

    def _assertion(self, name: str) -> _Fragment:
        return lambda after: self._write("assert", _ASSERTIONS[name], after)

    def _literal(self, character: str) -> Callable[[str], bool]:
        if "i" in self._flags:
            folded = character.casefold()
            return lambda c: c.casefold() == folded
        return character.__eq__

    def _group(self) -> _Fragment | None:
        before = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._name()
            elif not self._set_flags():
                return None
        inner = self._alternation()
        if not self._take(")"):
            raise RegexError(f"error parsing regexp: missing closing ): `{self._pattern}`")
        self._flags = before
        return inner

    def _name(self) -> None:
        end = self._pattern.find(">", self._at)
        name = self._pattern[self._at : max(end, 0)]
        if not name or not all(map(_WORD, name)):
            raise RegexError(f"error parsing regexp: invalid named capture: `{self._pattern[self._at - 2 :]}`")
        self._at = end + 1

    def _set_flags(self) -> bool:
        """`(?i)` holds to the end of the enclosing group, `(?i:…)` for its own; true for the latter."""
        flags, on, start = set(self._flags), True, self._at
        while self._at < len(self._pattern):
            character = self._peek()
            self._at += 1
            if character in "imsU":
                (flags.add if on else flags.discard)(character)
            elif character == "-" and on:
                on = False
            elif character in ":)" and character:
                self._flags = frozenset(flags)
                return character == ":"
            else:
                break
        shown = self._pattern[start - 2 : self._at]
        raise RegexError(f"error parsing regexp: invalid or unsupported Perl syntax: `{shown}`")

    def _escape(self) -> _Fragment:
        character = self._peek()
        self._at += 1
        if character in ("A", "z", "b", "B"):
            return self._assertion(character)
        if character == "Q":
            end = self._pattern.find("\\E", self._at)
            text = self._pattern[self._at : end if end >= 0 else None]
            self._at = end + 2 if end >= 0 else len(self._pattern)
            return self._text(text)
        return self._character(self._class(character) or self._literal(self._escaped(character)))

    def _text(self, text: str) -> _Fragment:
        tests = [self._literal(each) for each in text]

        def write(after: int) -> int:
            for test in reversed(tests):
                after = self._write("char", test, after)
            return after

        return write

    def _class(self, character: str) -> Callable[[str], bool] | None:
        if character in ("p", "P"):
            return self._category(negated=character == "P")
        found = _CLASSES.get(character.lower()) if character in "dswDSW" and character else None
        if found is None or character.islower():
            return found
        return lambda c: not found(c)

    def _category(self, *, negated: bool) -> Callable[[str], bool]:
        end = self._pattern.find("}", self._at) if self._peek() == "{" else self._at
        name = self._pattern[self._at : end + 1].strip("{}")
        self._at = end + 1
        negated ^= name.startswith("^")
        name = name.removeprefix("^")
        if end < 0 or (name not in _CATEGORIES and name != "Any"):
            raise RegexError(f"error parsing regexp: invalid character class range: `\\p{{{name}}}`")
        if name == "Any":
            return lambda c: not negated
        return lambda c: unicodedata.category(c).startswith(name) != negated

    def _escaped(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            end = self._pattern.find("}", self._at) if self._peek() == "{" else self._at + 1
            digits = self._pattern[self._at : end + 1].strip("{}")
            self._at = end + 1
            if (
                end > 0
                and digits
                and all(map(_POSIX["xdigit"], digits))
                and len(digits) <= 6
                and int(digits, 16) <= 0x10FFFF
            ):
                return chr(int(digits, 16))
        elif character and character.isascii() and not character.isalnum():
            return character
        elif character in "01234567" and character:
            digits = character
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._peek()
                self._at += 1
            if digits[0] == "0" or len(digits) > 1:
                return chr(int(digits, 8))
        if not character:
            raise RegexError("error parsing regexp: trailing backslash at end of expression: ``")
        raise RegexError(f"error parsing regexp: invalid escape sequence: `\\{character}`")

    def _set(self) -> Callable[[str], bool]:
        negated = self._take("^")
        tests: list[Callable[[str], bool]] = []
        first = True
        while first or self._peek() != "]":
            if self._peek() == "":
                raise RegexError(f"error parsing regexp: missing closing ]: `{self._pattern}`")
            tests.append(self._set_item())
            first = False
        self._at += 1
        if negated:
            return lambda c: not any(test(c) for test in tests)
        return lambda c: any(test(c) for test in tests)

    def _set_item(self) -> Callable[[str], bool]:
        if self._take("[:"):
            end = self._pattern.find(":]", self._at)
            name = self._pattern[self._at : max(end, 0)]
            self._at = end + 2
            found = _POSIX.get(name.removeprefix("^"))
            if found is None:
                raise RegexError(f"error parsing regexp: invalid character class range: `[:{name}:]`")
            return (lambda c: not found(c)) if name.startswith("^") else found
        low = self._set_character()
        if callable(low):
            return low
        if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("", "]"):
            self._at += 1
            high = self._set_character()
            if callable(high) or high < low:
                raise RegexError(f"error parsing regexp: invalid character class range: `{low}-`")
            return self._span_test(low, high)
        return self._literal(low)

    def _span_test(self, low: str, high: str) -> Callable[[str], bool]:
        if "i" in self._flags:
            return lambda c: low <= c <= high or low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high

    def _set_character(self) -> str | Callable[[str], bool]:
        character = self._peek()
        self._at += 1
        if character != "\\":
            return character
        character = self._peek()
        self._at += 1
        return self._class(character) or self._escaped(character)


def program(pattern: str) -> list[Step]:
    """The steps of a pattern, from the first. Raises `RegexError`."""
    return _RegexCompiler(pattern).program()
