"""`--watch`: output that is redrawn every second until Ctrl-C.

On a terminal it is redrawn in place and cut to the height of the window, so that its last lines
stay visible. In a pipe, what has changed is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from frd.errors import ServiceUnavailable

EVERY_S = 1.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Picture:
    """What is shown. If the window is too low, `body` is cut, `last` is not."""

    body: Sequence[RenderableType]
    last: Sequence[RenderableType]
    keep_end: bool = False
    """Cut the beginning of a body that is too long, not its end."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.body
        yield from self.last

    def cut(self, console: Console) -> RenderableType:
        """As much of it as fits the window."""
        body = console.render_lines(Group(*self.body), pad=False)
        last = console.render_lines(Group(*self.last), pad=False)
        room = max(1, console.height - len(last) - 1)
        if len(body) > room:
            more = Text(f"… {len(body) - room + 1} more lines: enlarge the window", style="dim")
            note = console.render_lines(more, pad=False)[:1]
            shown = body[1 - room :] if self.keep_end else body[: room - 1]
            body = [*note, *shown] if self.keep_end else [*shown, *note]
        return SegmentLines([*body, *last], new_lines=True)


def watch(screen: Console, draw: Callable[[], Picture]) -> None:
    """Show what `draw` returns on a terminal, every second, until Ctrl-C.

    A service that does not answer at the beginning is an error. Later it is shown with
    the last output, because services restart.
    """
    picture = draw()
    if not screen.is_terminal:
        return follow(draw, screen.print)
    with suppress(KeyboardInterrupt):
        _redraw(screen, draw, picture)


def is_news(shown: dict[str, object], name: str, what: object) -> bool:
    """Does `what` differ from what was shown as `name`? It is now."""
    before, shown[name] = shown.get(name), what
    return before != what


def follow(ask: Callable[[], _T], show: Callable[[_T], None]) -> None:
    """For a pipe: give `show` an answer every second, until Ctrl-C. If the service does not answer,
    a line on stderr says so, once."""
    is_silent = False
    with suppress(KeyboardInterrupt):
        while True:
            try:
                show(ask())
                is_silent = False
            except ServiceUnavailable as error:
                if not is_silent:
                    click.echo(f"frd: warning: {error}", err=True)
                is_silent = True
            time.sleep(EVERY_S)


def _redraw(screen: Console, draw: Callable[[], Picture], picture: Picture) -> None:
    with Live(picture.cut(screen), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_S)
            try:
                picture = draw()
                shown = picture
            except ServiceUnavailable as error:
                stale = Text(f"{error}; the data shown is old", style="bold yellow")
                shown = Picture(picture.body, [*picture.last, stale], picture.keep_end)
            live.update(shown.cut(screen), refresh=True)
