"""Parses the text of a stack dump: where a rank's program is.

Understands faulthandler's output (`dump_traceback`) and py-spy's, both innermost frame first, and
finds no frames in any other text. The text of a rank may go on with sections for its child
processes (`child_header`). The main thread is the one that should be in a collective; if a
framework runs the program in another thread, that thread takes its place. Of its frames
people want their own, so those of torch, the standard library, installed packages and frd's tap are
left out while there are others; the innermost library frame is kept, too.

Texts come from inside a training process and end in terminals, so nothing unprintable passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.flight.entry import Frame

USAGE: Final = "# usage: "
"""Starts the line on the processor time of a process."""
ADVICE: Final = "# advice: "
"""Starts the line that says what to do about a stack that could not be read."""
RESTED: Final = "# main thread: has not run since it had used "
"""Starts the line on the processor time (``1234 ns``) of a main thread that used none while its
stack was read. Texts without it say nothing about that."""
_MAX_FRAMES = 64
_CUT_AT = 64
"""Frames after which a tap cuts a stack; faulthandler does so after 100."""
_ENTRIES: Final = frozenset({"<module>", "main", "run", "_run_code", "_bootstrap_inner"})
"""Functions below which a program, a process or a thread runs its own code."""
_MAX_LINE = 1_024
_MAX_CHILDREN = 64

_RESTED = re.compile(re.escape(RESTED) + r"(?P<ns>\d{1,19}) ns")
_CHILD = re.compile(r"== child (?P<pid>\d{1,10})(?: (?P<name>.*))?")
_FAULT_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\)")
_FAULT_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_SPY_PROCESS = re.compile(r"Process (?P<pid>\d+): ")
_SPY_THREAD = re.compile(r'Thread (?P<id>\w+) \([^)]*\)(?:: "(?P<name>.*)")?')
_SPY_FRAME = re.compile(r"\s+(?P<name>\S.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")
_STATE = re.compile(r"State:\t(?P<state>\S \([\w ]+\))")
_WCHAN = re.compile(r"== /\S*/wchan\n(?P<wchan>\w+)")

_TORCH = re.compile(
    r"(?:^|/)torch/(?:\w+\.py$|(?:_\w+|autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils)/)"
    r"|<eval_with_key>"
)
_STANDARD_LIBRARY = re.compile(r"(?:^|/)lib(?:64)?/python3[.\d]*t?/|^<frozen |/python3\d+\.zip/")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_TAP = re.compile(r"(?:^|/)frd_agent/")
_PROGRAM_THREADS: Final = (
    ("/ray/train/v2/_internal/execution/worker_group/thread_runner.py", "_run_target"),
    ("/ray/air/_internal/util.py", "run"),  # Ray Train before its second version
)
"""Functions in which frameworks run the program, in a thread of a process whose main thread only
serves requests."""
_PACKAGE = re.compile(r".*(?:/(?:site|dist)-packages/|/lib(?:64)?/python3[.\d]*t?/|/(?=torch/))")


@dataclass(frozen=True, slots=True)
class StackFrame:
    file: str
    line: str
    name: str
    """Of the function, without its class."""

    def __str__(self) -> str:
        return _printable(f"{self.file.rpartition('/')[2]}:{self.line} in {self.name}")

    @property
    def place(self) -> str:
        """``train.py:28 __getitem__``"""
        return _printable(f"{self.file.rpartition('/')[2]}:{self.line} {self.name}")

    @property
    def in_package(self) -> str:
        """With the path inside its package: ``torch/serialization.py:1259 in _save``."""
        return _printable(f"{_PACKAGE.sub('', self.file)}:{self.line} in {self.name}")


@dataclass(slots=True)
class ProcessStack:
    """One process in the text."""

    pid: int = 0
    """0: of the rank itself."""
    name: str = ""
    usage: str = ""
    advice: str = ""
    ran_ns: int | None = None
    """Processor time that the main thread has used, if it used none while the stack was read."""
    kernel: str = ""
    """State and place of the process in the kernel, if nothing else could be read of it."""
    collects: bool = False
    """It is collecting garbage."""
    main: list[StackFrame] = field(default_factory=list)
    """Frames of the main thread, or of the thread in which a framework runs the program; innermost
    first."""
    threads: list[list[StackFrame]] = field(default_factory=list)
    """Of the other threads that run Python, but for frd's own."""
    children: list[ProcessStack] = field(default_factory=list)
    """Of the rank's own process, if the caller of `processes` has put them here."""

    @property
    def own(self) -> list[StackFrame]:
        """The user's frames of the main thread; without any, those of installed packages other than
        torch; without these, all."""
        return own_of(self.main)

    @property
    def has_left(self) -> bool:
        """The main thread has left the program's main module: the interpreter ends, and what it is
        in says nothing of the program. Not so of a stack that is cut, or of an embedded program."""
        is_whole = 0 < len(self.main) < _CUT_AT and is_machinery(self.main[-1])
        return is_whole and _ENTRIES.isdisjoint(frame.name for frame in self.main)

    @property
    def inside(self) -> str:
        """The innermost library frame, if an own frame called it."""
        own = self.own
        return self.main[0].in_package if own and own[0] is not self.main[0] else ""


def processes(text: str) -> Iterator[ProcessStack]:
    """The rank's process, then its children."""
    found = ProcessStack()
    section: list[str] = []
    children = 0
    for line in text.split("\n"):
        if child := _CHILD.fullmatch(line):
            yield _read(found, section)
            children += 1
            if children > _MAX_CHILDREN:
                return
            found, section = ProcessStack(int(child["pid"]), _printable(child["name"] or "")), []
        else:
            section.append(line.rstrip()[:_MAX_LINE])
    yield _read(found, section)


def stack_of(frames: Iterable[tuple[str, int, str]], ran_ns: int | None) -> ProcessStack:
    """Of frames of the main thread, innermost first: file, line, function."""
    main = [StackFrame(file, str(line), name) for file, line, name in frames]
    return ProcessStack(main=_of_this_process(main), ran_ns=ran_ns)


def child_header(pid: int, name: str) -> str:
    """The line above the stack of a child process."""
    return f"== child {pid} {_printable(name)}\n"


def user_frames_of(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Own frames of an entry such as ``train.py:88 in load_batch``, innermost first."""
    return lines_of(own_of([StackFrame(f.filename, str(f.line), f.name) for f in frames]))


def lines_of(frames: Sequence[StackFrame], most: int = _MAX_FRAMES) -> tuple[str, ...]:
    return tuple(str(frame) for frame in frames[:most])


def own_of(frames: list[StackFrame]) -> list[StackFrame]:
    """See `ProcessStack.own`."""
    for foreign in (_is_installed, is_machinery):
        if own := [frame for frame in frames if not foreign(frame)]:
            return own
    return frames


def is_machinery(frame: StackFrame) -> bool:
    """Of torch, the standard library or frd."""
    return bool(
        _TORCH.search(frame.file) or _TAP.search(frame.file) or is_of_standard_library(frame)
    )


def is_of_standard_library(frame: StackFrame) -> bool:
    return bool(_STANDARD_LIBRARY.search(frame.file)) and not _INSTALLED.search(frame.file)


def _is_installed(frame: StackFrame) -> bool:
    return is_machinery(frame) or bool(_INSTALLED.search(frame.file))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


# -- reading -----------------------------------------------------------------------------------


def _read(process: ProcessStack, lines: list[str]) -> ProcessStack:
    for line in lines:
        if line.startswith(USAGE):
            process.usage = _printable(line.removeprefix(USAGE))
        elif line.startswith(ADVICE):
            process.advice = _printable(line.removeprefix(ADVICE))
        elif rested := _RESTED.fullmatch(line):
            process.ran_ns = int(rested["ns"])
        elif line == "  Garbage-collecting":
            process.collects = True
    main, others = _of_faulthandler(lines)
    if not main:
        main, others = _of_py_spy(lines)
    for at, frames in enumerate(others):
        if any(map(_runs_program, frames)):
            others[at], main = main, frames
            process.ran_ns = None  # of the thread that only serves requests
            break
    process.main = _of_this_process(main)
    process.threads = [_of_this_process(frames) for frames in others if not _is_tap(frames)]
    if not main:
        process.kernel = _in_kernel("\n".join(lines))
    return process


def _of_faulthandler(lines: list[str]) -> tuple[list[StackFrame], list[list[StackFrame]]]:
    """The main thread is the last one: CPython lists the newest first."""
    threads: list[list[StackFrame]] = [[]]
    for line in lines:
        if _FAULT_THREAD.match(line):
            threads.append([])
        elif found := _FAULT_FRAME.fullmatch(line):
            threads[-1].append(StackFrame(found["file"], found["line"], found["name"]))
    return threads[-1], [frames for frames in threads[:-1] if frames]


def _of_py_spy(lines: list[str]) -> tuple[list[StackFrame], list[list[StackFrame]]]:
    """The main thread is the one of that name, else the one whose id is the process's, else the
    first."""
    pid = ""
    likely: list[int] = []
    threads: list[list[StackFrame]] = []
    for line in lines:
        if process := _SPY_PROCESS.match(line):
            pid = process["pid"]
        elif thread := _SPY_THREAD.fullmatch(line):
            likely.append(2 if thread["name"] == "MainThread" else int(thread["id"] == pid))
            threads.append([])
        elif threads and (found := _SPY_FRAME.fullmatch(line)):
            name = found["name"].rpartition(".")[2] or found["name"]
            threads[-1].append(StackFrame(found["file"], found["line"] or "?", name))
    if not threads:
        return [], []
    main = likely.index(max(likely))
    return threads[main], [f for i, f in enumerate(threads) if f and i != main]


def _of_this_process(frames: list[StackFrame]) -> list[StackFrame]:
    """Without the frames of the parent, which a forked process has below its own."""
    for at, frame in enumerate(frames):
        if frame.name == "_bootstrap" and frame.file.endswith("/multiprocessing/process.py"):
            return frames[: at + 1]
    return frames


def _runs_program(frame: StackFrame) -> bool:
    return any(frame.name == name and frame.file.endswith(file) for file, name in _PROGRAM_THREADS)


def _is_tap(frames: list[StackFrame]) -> bool:
    return any(_TAP.search(frame.file) for frame in frames)


def _in_kernel(text: str) -> str:
    """``in the kernel: D (disk sleep), nfs_wait_bit_killable``"""
    state, wchan = _STATE.search(text), _WCHAN.search(text)
    if state is None:
        return ""
    where = f", {wchan['wchan']}" if wchan is not None and wchan["wchan"] != "0" else ""
    return f"in the kernel: {state['state']}{where}"
