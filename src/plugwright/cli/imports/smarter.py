"""smarter."""

from plugwright.cli.imports.source import Imported, Source

__all__ = ["recognises", "translate"]


def recognises(source: Source) -> bool:
    return False


def translate(source: Source) -> Imported:
    return Imported(())
