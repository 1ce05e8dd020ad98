"""Functions on lists and sets."""

from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise

from plugwright.allocator.cel.cel_values import ABSENT, Duration, EvaluationError, Optional, Uint, compare
from plugwright.allocator.cel.dispatch import function
from plugwright.allocator.cel.functions import in_list, integer, unsigned

__all__: list[str] = []

_LONGEST = 1_000_000  # elements of lists.range()


def _sorted(elements: list[object], keys: list[object]) -> list[object]:
    order = cmp_to_key(compare)
    return [elements[index] for index in sorted(range(len(keys)), key=lambda index: order(keys[index]))]


def _extreme(name: str, sign: int) -> Callable[[list[object]], object]:
    def extreme(elements: list[object]) -> object:
        if not elements:
            raise EvaluationError(f"{name} called on empty list")
        found = elements[0]
        for each in elements[1:]:
            if compare(each, found) == sign:
                found = each
        return found

    return extreme


@function("sum", list)
def _sum(elements: list[object]) -> object:
    if elements and isinstance(elements[0], Duration):
        return Duration(integer(sum(each.nanoseconds for each in elements if isinstance(each, Duration))))
    if elements and isinstance(elements[0], float):
        return sum(elements)  # type: ignore[arg-type]
    total = 0
    for each in elements:
        if type(each) not in (int, Uint):
            raise EvaluationError("no such overload")
        total += int(each)  # type: ignore[call-overload]
    return unsigned(total) if elements and isinstance(elements[0], Uint) else integer(total)


def _index_of(elements: list[object], value: object) -> int:
    return next((index for index, each in enumerate(elements) if in_list(each, [value])), -1)


def _last_index_of(elements: list[object], value: object) -> int:
    found = _index_of(elements[::-1], value)
    return found if found < 0 else len(elements) - 1 - found


@function("slice", list, int, int)
def _slice(elements: list[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(elements):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(elements)}")
    return elements[start:end]


@function("flatten", list, int)
def _flatten(elements: list[object], depth: int) -> list[object]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[object] = []
    for each in elements:
        if isinstance(each, list):
            flat.extend(_flatten(each, depth - 1) if depth > 1 else each if depth else [each])
        else:
            flat.append(each)
    return flat


@function("lists.range", int)
def _range(count: int) -> list[int]:
    if count > _LONGEST:
        raise EvaluationError(f"lists.range({count}) has more than {_LONGEST} elements")
    return list(range(count))


@function("distinct", list)
def _distinct(elements: list[object]) -> list[object]:
    found: list[object] = []
    for each in elements:
        if not in_list(each, found):
            found.append(each)
    return found


def _contains(left: list[object], right: list[object]) -> bool:
    return all(in_list(each, left) for each in right)


@function("includes", object, object)
def _includes(container: object, value: object) -> bool:
    return in_list(value, container if isinstance(container, list) else [container])


function("flatten", list)(lambda elements: _flatten(elements, 1))
function("indexOf", list, object)(_index_of)
function("lastIndexOf", list, object)(_last_index_of)
function("isSorted", list)(lambda items: all(compare(a, b) <= 0 for a, b in pairwise(items)))
function("max", list)(_extreme("max", 1))
function("min", list)(_extreme("min", -1))
function("reverse", list)(lambda elements: elements[::-1])
function("first", list)(lambda elements: Optional(elements[0], present=True) if elements else ABSENT)
function("last", list)(lambda elements: Optional(elements[-1], present=True) if elements else ABSENT)
function("sort", list)(lambda elements: _sorted(elements, elements))
function("@sortByAssociatedKeys", list, list)(_sorted)
function("sets.contains", list, list)(_contains)
function("sets.equivalent", list, list)(lambda a, b: _contains(a, b) and _contains(b, a))
function("sets.intersects", list, list)(lambda a, b: any(in_list(each, a) for each in b))
