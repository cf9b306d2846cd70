"""Files with credentials, read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from frd.errors import ConfigError

T = TypeVar("T")
log = logging.getLogger(__name__)


class Reloaded(Generic[T]):
    """What `load` makes of the files at `paths`; `name` is for the log. Any thread may use it.

    Raises:
        ConfigError: from the constructor, when a file cannot be used. Later, the previous content
            stays in use, and the log says so once for each change of a file.
    """

    def __init__(self, name: str, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self.load = load
        self._lock = threading.Lock()
        self._stamps = self._stamp()
        self._content = load()

    def content(self) -> T:
        with self._lock:
            if (stamps := self._stamp()) != self._stamps:
                self._stamps = stamps
                try:
                    self._content = self.load()
                    log.info("%s: read again", self._name)
                except ConfigError as error:
                    log.error("%s: the previous %s stay in use", error, self._name)
            return self._content

    def _stamp(self) -> list[tuple[int, ...]]:
        """Differs after a file was written or replaced."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
