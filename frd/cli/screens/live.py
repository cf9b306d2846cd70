"""`--watch`: output that is redrawn every second until Ctrl-C.

On a terminal it is redrawn in place and cut to the height of the window, so that its last lines
stay visible. Into a pipe it is printed every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from frd.errors import ServiceUnavailable

EVERY_S = 1.0


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
    """Show what `draw` returns, every second, until Ctrl-C.

    A service that does not answer at the beginning is an error. Later it is shown with
    the last output, because services restart.
    """
    picture = draw()
    try:
        if screen.is_terminal:
            _redraw(screen, draw, picture)
        else:
            _reprint(screen, draw, picture)
    except KeyboardInterrupt:
        pass


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


def _reprint(screen: Console, draw: Callable[[], Picture], picture: Picture) -> None:
    while True:
        screen.print(picture)
        time.sleep(EVERY_S)
        try:
            picture = draw()
        except ServiceUnavailable as error:
            picture = Picture((), [Text(str(error))])
