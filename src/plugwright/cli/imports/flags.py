"""Command lines as Go programs read them: `--name value`, `--name=value`, with one dash or two."""

from collections.abc import Iterable, Iterator

import yaml

from plugwright.cli.imports.values import Value

__all__ = ["read"]


def read(words: Iterable[Value], switches: Iterable[str] = ()) -> Iterator[tuple[str, Value]]:
    """Each flag's name, without its dashes, and its value; `switches` take none. What is no flag is passed over."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.raw.lstrip("-").partition("=")
        if not word.raw.startswith("-") or not name:
            continue
        if equals:
            yield name, _replaced(word, value)
        elif name in switches:
            yield name, _replaced(word, "true")
        else:
            follower = next(rest, None)
            if follower is None:
                raise word.error(f"nothing follows {word.raw}")
            yield name, follower


def _replaced(word: Value, text: str) -> Value:
    """`text`, standing where `word` stood."""
    node = word.node
    made = yaml.ScalarNode(
        "tag:yaml.org,2002:str", text, node.start_mark, node.end_mark, style=getattr(node, "style", None)
    )
    return Value(word.file, word.place, made)
