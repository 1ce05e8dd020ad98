"""The table of docs/cluster-differences.md: every request that the two API servers do not answer alike.

A row has both answers as far as they differ, and the requests that get them.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.differences.every_kind import KINDS
from tests.kubernetes.differences.playing import Json

__all__ = ["documented_rows", "rewrite", "rows"]

PAGE = Path(__file__).parents[3] / "docs" / "cluster-differences.md"
_HEAD = "| request | on a real cluster | on the embedded one |\n|---|---|---|\n"
_LONGEST = 160


def rows(real: dict[str, Json], embedded: dict[str, Json]) -> list[str]:
    """Of the answers by the names of the requests; requests with the same two answers share a row."""
    alike: defaultdict[tuple[str, str], defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, theirs in real.items():
        ours = embedded[name]
        if theirs != ours:
            kind, _, request = name.partition(": ")
            alike[_shown(theirs, ours), _shown(ours, theirs)][request].append(kind)
    return sorted(f"| {_named(requests)} | {theirs} | {ours} |" for (theirs, ours), requests in alike.items())


def _named(requests: dict[str, list[str]]) -> str:
    """`nodes, pods: create; nodes: get`."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for request, of in requests.items():
        kinds["every kind" if {*of} == {*KINDS} else ", ".join(sorted(of))].append(request)
    return "; ".join(f"{of}: {', '.join(sorted(names))}" for of, names in sorted(kinds.items()))


def _shown(answer: Json, other: Json) -> str:
    if answer["code"] >= 400:
        causes = [cause for cause in answer.get("causes", []) if cause not in other.get("causes", [])]
        text = f"{answer['code']} {answer.get('reason') or ''}".strip() + (f": {'; '.join(causes)}" if causes else "")
    elif other["code"] >= 400:
        text = str(answer["code"])
    else:
        members, others = (dict(_members(one.get("object"), "")) for one in (answer, other))
        different = (name for name in sorted({*members, *others}) if members.get(name) != others.get(name))
        text = f"{answer['code']}: " + "; ".join(f"{name} {members.get(name, 'absent')}" for name in different)
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return text.replace("|", "\\|").replace("\n", " ")


def _members(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _members(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _members(inner, f"{path}[{number}]")
    else:
        yield path, repr(value)


def documented_rows() -> list[str]:
    return PAGE.read_text().partition(_HEAD)[2].partition("\n\n")[0].strip().splitlines()


def rewrite(lines: list[str]) -> None:
    before, head, after = PAGE.read_text().partition(_HEAD)
    assert head, f"{PAGE.name} has no table of requests"
    rest = after.partition("\n\n")[2]
    PAGE.write_text(before + head + "".join(f"{line}\n" for line in lines) + (f"\n{rest}" if rest else ""))
