"""A view that is redrawn in place on a terminal, and printed after each change on a dumb terminal and in a pipe."""

import os
import sys
import time
from collections.abc import Callable, Sequence

import click

from plugwright.cli.color import color_choice

__all__ = ["View", "show_live"]

View = Callable[[], tuple[object, Sequence[str]]]  # a value that differs after changes, and the lines


def show_live(view: View, pause: float) -> None:
    """Shows the view until Ctrl-C, updated every `pause` seconds."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        _print_changes(view, pause)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=color_choice() is False, highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            _, lines = view()
            stamp = f"as of {time.strftime('%H:%M:%S')}; Ctrl-C ends it"
            shown = [stamp, *lines]
            if len(shown) > console.height:
                more = len(shown) - console.height + 1
                shown = [*shown[: console.height - 1], f"{more} more lines: make the window larger"]
            rows = [Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in shown]
            live.update(Group(*rows), refresh=True)
            time.sleep(pause)


def _print_changes(view: View, pause: float) -> None:
    before: object = None
    while True:
        key, lines = view()
        if key != before:
            click.echo("\n".join([*lines, ""]))
            sys.stdout.flush()
            before = key
        time.sleep(pause)
