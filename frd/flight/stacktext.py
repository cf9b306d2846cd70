"""Where a rank's program stands, read from the text of a stack dump.

Understands faulthandler's output (`dump_traceback`) and py-spy's, both innermost frame first, and
finds nothing in any other text. Only the main thread counts: that is the one that should be in a
collective. Of its frames people want their own, so those of torch, the standard library, installed
packages and frd's tap are passed over while there are others.

Texts come from inside a training process and end in terminals, so nothing unprintable passes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from frd.flight.entry import Frame

_MAX_FRAMES = 64
_MAX_LINE = 1_024

_FAULT_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\)")
_FAULT_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_SPY_PROCESS = re.compile(r"Process (?P<pid>\d+): ")
_SPY_THREAD = re.compile(r'Thread (?P<id>\w+) \([^)]*\)(?:: "(?P<name>.*)")?')
_SPY_FRAME = re.compile(r"\s+(?P<name>\S.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")

_TORCH = re.compile(
    r"(?:^|/)torch/(?:\w+\.py$|(?:_\w+|autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils)/)"
    r"|<eval_with_key>"
)
_STANDARD_LIBRARY = re.compile(r"(?:^|/)lib(?:64)?/python3[.\d]*t?/|^<frozen |/python3\d+\.zip/")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_TAP = re.compile(r"(?:^|/)frd_agent/")


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: str
    name: str

    def __str__(self) -> str:
        text = f"{self.file.rpartition('/')[2]}:{self.line} in {self.name}"
        return "".join(char if char.isprintable() else "?" for char in text)


def user_frames(text: str) -> tuple[str, ...]:
    """Frames of the main thread such as ``train.py:88 in load_batch``, innermost first.

    The user's own; where there are none, those of installed packages other than torch; where there
    are none either, all. Empty when `text` shows no Python frame of the main thread.
    """
    return _own(_main_thread(text))


def user_frames_of(frames: Sequence[Frame]) -> tuple[str, ...]:
    """The same of the frames of an entry, innermost first."""
    return _own([_Frame(frame.filename, str(frame.line), frame.name) for frame in frames])


def _own(frames: list[_Frame]) -> tuple[str, ...]:
    for foreign in (_is_installed, _is_machinery):
        if own := [frame for frame in frames if not foreign(frame)]:
            frames = own
            break
    return tuple(str(frame) for frame in frames[:_MAX_FRAMES])


def _is_machinery(frame: _Frame) -> bool:
    if _TORCH.search(frame.file) or _TAP.search(frame.file):
        return True
    return bool(_STANDARD_LIBRARY.search(frame.file)) and not _INSTALLED.search(frame.file)


def _is_installed(frame: _Frame) -> bool:
    return _is_machinery(frame) or bool(_INSTALLED.search(frame.file))


def _main_thread(text: str) -> list[_Frame]:
    lines = [line.rstrip()[:_MAX_LINE] for line in text.split("\n")]
    return _of_faulthandler(lines) or _of_py_spy(lines)


def _of_faulthandler(lines: list[str]) -> list[_Frame]:
    """The last thread: CPython lists the newest first."""
    frames: list[_Frame] = []
    for line in lines:
        if _FAULT_THREAD.match(line):
            frames = []
        elif found := _FAULT_FRAME.fullmatch(line):
            frames.append(_Frame(found["file"], found["line"], found["name"]))
    return frames


def _of_py_spy(lines: list[str]) -> list[_Frame]:
    """The thread of that name, else the one whose id is the process's, else the first."""
    pid = ""
    best: list[_Frame] = []
    best_rank = -1
    frames: list[_Frame] = []
    for line in lines:
        if process := _SPY_PROCESS.match(line):
            pid = process["pid"]
        elif thread := _SPY_THREAD.fullmatch(line):
            frames = []
            rank = 2 if thread["name"] == "MainThread" else 1 if thread["id"] == pid else 0
            if rank > best_rank:
                best, best_rank = frames, rank
        elif found := _SPY_FRAME.fullmatch(line):
            frames.append(_Frame(found["file"], found["line"] or "?", found["name"]))
    return best
