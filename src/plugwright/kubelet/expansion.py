"""References to variables in a container's command and environment: `$(NAME)`. Pure."""

import re
from collections.abc import Mapping

__all__ = ["expand_references"]

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand_references(text: str, environment: Mapping[str, str]) -> str:
    """Expands `$(NAME)`: an unknown name stays unchanged, `$$` becomes `$`."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else environment.get(match[1], match[0]), text)
