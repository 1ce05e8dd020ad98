"""The body of a request, read: JSON, YAML or the little protobuf that kubectl sends."""

from typing import Any

import msgspec
import yaml

from plugwright.cluster.api.errors import bad_request, unsupported_media
from plugwright.errors import MalformedMessage
from plugwright.protocol import api_objects

__all__ = ["LIMIT", "check_depth", "read"]

LIMIT = 3 * 1024 * 1024
_DEEPEST = 200  # levels of nesting; no object of Kubernetes has thirty
_READABLE = ("application/json", "application/yaml", api_objects.MEDIA_TYPE)


class _Loader(yaml.SafeLoader):
    """YAML that is JSON in other letters: no aliases, which could make much out of little, and no dates."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    try:
        found = _decoded(content, media)
    except api_objects.UnknownKind as error:
        raise unsupported_media(_READABLE, str(error)) from None
    except (msgspec.MsgspecError, yaml.YAMLError, MalformedMessage, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise bad_request(f"the object provided is unrecognized (must be of type JSON or YAML): {problem}") from None
    check_depth(found)
    return found


def check_depth(found: object) -> None:
    """What is too deep must not be walked recursively."""
    if _depth(found) > _DEEPEST:
        raise bad_request(f"the object provided is nested deeper than {_DEEPEST} levels")


def _decoded(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    if not content:
        return {}
    if media in ("", "application/json") or media.endswith("+json"):
        return msgspec.json.decode(content)
    if media in ("application/yaml", "application/x-yaml"):
        # Written as JSON and read again: what YAML has beyond it is refused.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(content, _Loader)))  # noqa: S506  a safe loader
    if media == api_objects.MEDIA_TYPE:
        return api_objects.read(content)
    raise unsupported_media(_READABLE)


def _depth(found: object) -> int:
    depth, level = 0, [found]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth
