"""Regular expressions in RE2's syntax, matched in linear time.

Python's `re` can backtrack exponentially, and accepts patterns that RE2 rejects. This is a small Pike machine: threads
in order of preference, one step per character. Scripts in Unicode classes (`\\p{Greek}`) are refused.
"""

from functools import lru_cache

from plugwright.allocator.cel.regex_syntax import RegexError, program

__all__ = ["Regex", "RegexError", "compiled"]


class Regex:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        self._steps = program(pattern)

    @lru_cache(maxsize=4096)  # noqa: B019
    def search(self, text: str) -> bool:
        """Whether the pattern occurs in the text."""
        return self._span(text, 0) is not None

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """Matches from left to right, as Go's FindAllString."""
        found: list[str] = []
        at, last = 0, -1
        while at <= len(text) and (limit < 0 or len(found) < limit):
            span = self._span(text, at)
            if span is None:
                break
            start, end = span
            if end > start or start != last:
                found.append(text[start:end])
            last = end
            at = end if end > start else end + 1
        return found

    def _span(self, text: str, start: int) -> tuple[int, int] | None:
        """The leftmost match, preferring as Perl does."""
        threads: list[tuple[int, int]] = []
        best: tuple[int, int] | None = None
        for at in range(start, len(text) + 1):
            if best is None:
                threads.append((0, at))
            elif not threads:
                break
            waiting: list[tuple[int, int]] = []
            seen: set[int] = set()
            for step, begun in threads:
                if self._follow(step, text, at, (begun, seen, waiting)):
                    best = (begun, at)
                    break
            threads = []
            if at < len(text):
                character = text[at]
                for index, begun in waiting:
                    test = self._steps[index].test
                    assert test is not None
                    if test(character):
                        threads.append((self._steps[index].to[0], begun))
        return best

    def _follow(self, first: int, text: str, at: int, thread: tuple[int, set[int], list[tuple[int, int]]]) -> bool:
        """Add the character steps reachable without a character; true if the pattern matched here."""
        begun, seen, waiting = thread
        stack = [first]
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            step = self._steps[index]
            if step.kind == "match":
                return True
            if step.kind == "char":
                waiting.append((index, begun))
            elif step.kind == "split" or (step.test is not None and step.test(text, at)):
                stack.extend(reversed(step.to))
        return False


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Regex:
    """The compiled pattern. Raises `RegexError`."""
    return Regex(pattern)
