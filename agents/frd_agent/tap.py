"""The part of frd inside a training process: it publishes the rank's identity for the agent.

It knows torch's process groups, recorder counters and allocator counters, the phases of the program
(`frd_agent.phases`), and six files in the run directory: an identity (JSON, replaced as a whole),
counters (binary: of collectives about once a second, of the allocator five times; in a container
also of host memory), the unix socket of torch's own C++ worker server, a stage (JSON, only during
an initialization that takes longer than some seconds, and while counters rest), phases (JSON, only
if the program has any), and dumps of recorders that no worker server gives (JSON, when their
counters rest). It knows nothing of jobs, agents and services, and is self-contained: standard
library only, Python 3.9 or later, loaded by path where frd is not installed.

The rank is sacred. One daemon thread does everything and sleeps except for about 100 µs a second. A
failure costs one line on stderr, and the rank runs on as if frd were not there. The tap installs no
signal handler and no excepthook, and replaces nothing of torch. That led to these rules, tested
with torch 2.13 on CPUs, and what needs a GPU with torch 2.11:

- Signals of the process are for the program's threads. The tap's thread and those of the worker
  server, which inherit its mask, block all but the signals of faults: a blocked SIGSEGV would
  silence faulthandler. A thread that did not block SIGTERM would end a program that waits for it
  with `sigwait`. A signal that comes while the tap starts is handled after that, by the program.
- The worker server ends the process if it cannot start a thread or accept a connection. So it is
  started only if much remains of every limit that can be seen (`shortage`), and an agent connects
  only where descriptors and memory are plenty (`frd_agent.recorder.room`). A rank without the
  server publishes its entries once its counters rest: to read them holds the GIL, 16 µs an entry.
  So it does with torch 2.8 and 2.9, whose server lacks Gloo's recorder. The recorder of a hook
  (torch 2.15) gives only what is in flight without the GIL. All of it an agent gets from the tap's
  handler `frd_trace`, if the GIL is free, for at most 0.5 % of the time, and of a rank that makes
  progress 0.2 %. No exception may leave a handler: it would end the process.
- The worker server is never shut down or destroyed: its shutdown holds the GIL while it waits for
  handlers that need the GIL, and a forked child that destroys its copy of the object shuts the
  shared listening socket, upon which torch terminates the *parent*. So the object is made immortal.
- A handler that takes the GIL of a finalizing interpreter aborts the process. So at exit the tap
  removes the socket's name first, and then waits a moment for requests already under way.
- Counters are written with pwrite, not through a mapping: a full disk is then an error to report,
  not a SIGBUS, and a slow disk is waited for without the GIL. A checksum guards readers on any
  memory model. No descriptor stays open: if a program closed it as unknown, the next file that the
  program opens would get its number and be overwritten.
- A program that handles a KeyboardInterrupt leaves no trace of it. So Python's own handler, in C,
  writes the numbers of signals into a pipe (signal.set_wakeup_fd). Its descriptors are so high that
  no file of the program gets them if they are closed; nothing waits for it; asyncio takes its place
  where a program uses that; and it goes where trio is imported, which would warn. Forked children
  have none.
- The tap keeps no reference to a process group, so none is destroyed late or on this thread.
- Nothing is imported on the thread: a fork at that moment would leave an import lock held. No file
  is opened as text there, because that may import a codec.
- torch reads its allocator's counters under the GIL, some tens of µs a device, so the tap reads
  them at most five times a second. All ranks read them together, at fifths of a second of the
  wall clock: one pause for a job that waits for its slowest rank anyway, and samples that can be
  compared.
  It also takes the allocator's lock: while a cudaMalloc or cudaFree of this rank does not return,
  its other Python threads may wait as they would for its own torch.cuda.memory_stats.
- The stage of the main thread is found by the names of the functions that it is in. One call of C
  code walks its frames and keeps only code objects and line numbers. The GIL cannot change hands
  in between, so this thread keeps no frame alive and destroys no object of the program. A walk
  takes 5 to 30 µs, once a second, and only in a process that is no rank yet although its
  environment has all that init_process_group reads, or in a rank whose counters rest. With the file
  that is 0.3 ms of processor time, 0.2 ms of them with the GIL, in pieces of at most 40 µs. Where
  Ray is, all Python threads are walked at the first two looks at them.
- A framework's worker may run the train function in a thread and keep its exception. Once a thread
  has ended and none is left in code that uses torch, nothing trains: only then the tap looks, once,
  for exceptions among all objects, which holds the GIL for 130 ms per million objects.
- While a program captures a CUDA graph in CUDA's default mode, no other thread may ask whether an
  event has happened, or the capture fails. torch's recorder does ask when it dumps entries of NCCL.
  So the tap adds a handler to the worker server that exempts the thread that runs it from this
  rule, as torch's own watchdog exempts itself, and the agent calls it on the same connection, hence
  on the same thread, before each dump. It takes the GIL for a moment. If a program holds the GIL
  then, the agent dumps later, and without it only if the tap has published nothing for long.
- The observer of out-of-memory errors only appends a tuple to a deque: it runs in the middle of a
  failing allocation, and torch offers no way to remove it.
- The environment is changed in one place only, `settle_variables`: on the thread that imports
  torch.distributed and before torch's C++ code reads it. A change after init_process_group could
  crash a thread of torch that reads the environment at that moment.
- A forked child has no threads. One that `multiprocessing` forked may become a rank, so it gets
  its own tap, started where multiprocessing calls such functions: before the child's target, and
  after its locks are whole again. A worker of a DataLoader never becomes a rank and gets none. A
  child of a plain os.fork gets none either: it may have to stay single-threaded, to enter another
  namespace for example. Any other child has a thread that wakes up once a second, for some 80 µs of
  CPU (32 children: 0.3 % of a core). Process groups that a child inherits are its parent's: only
  its own default group makes it a rank. multiprocessing ends its children without the
  interpreter's exit handlers, so one of its finalizers writes the exit record; in spawned children,
  too, because only there the exception is visible that multiprocessing prints, or that
  torch.multiprocessing.spawn sends to the parent.
- Only if the user asks for it (`frd-agent exec --allow-ptrace`), each process with a tap, and each
  child that it forks, lets any process of its user read it where Yama forbids that. A process has
  one such entry, which cannot be read, and other libraries set it as well: it is set once, when the
  process begins, and never cleared.

The tap shares no lock with the program, and no state that both change. It imports these modules and
calls these functions of theirs, and constants (tests/unit/agent/tap/test_tap_calls.py):

- `_thread`: start_new_thread, stack_size. The module `threading` does not know the thread: a
  program that joins or counts all threads, or traces new ones, does not meet it.
- `threading`: Event, main_thread, _active. No other object has the locks of an Event, and the dict
  of threads is copied in one step.
- `gc`: get_objects. Only while no thread trains.
- `atexit`: register. Once, on the thread that imports torch.distributed, like register_at_fork.
- `_signal`: pthread_sigmask, valid_signals, sigtimedwait, getsignal, set_wakeup_fd. All but the
  last concern the calling thread, or only read.
- `os`: open, pipe2, read, write, pwrite, close, unlink, replace, ftruncate, fchmod, chmod, mkdir,
  stat, lstat, fstat, readlink, access, listdir, sysconf, urandom, getpid, getuid, geteuid,
  fsencode, path, environ, register_at_fork; `fcntl`: flock, fcntl; `socket`: gethostname;
  `time`: time, time_ns, monotonic, monotonic_ns, thread_time, sleep. System calls; of the
  environment it reads single variables.
- `sys`: modules, _current_frames, exc_info. Each is read in one step, under the GIL.
- `json`: dumps, JSONDecoder; `struct`: Struct; `re`: compile; `zlib`: crc32; `stat`: S_ISDIR,
  S_ISFIFO, S_ISLNK; `itertools`: count, chain, repeat, islice, accumulate, compress, tee;
  `operator`: itemgetter, attrgetter, is_; `contextlib`: suppress, contextmanager;
  `collections`: deque. All values are the tap's. The decoder of `json.loads` is the program's too,
  so the tap has another.
- `ctypes`: PyDLL, CDLL, c_int, c_ulong, byref, py_object. The tap has its own handles: a program
  may change the argument types of the functions in `ctypes.pythonapi`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of all numbers
import _thread
import atexit
import contextlib
import ctypes
import fcntl
import gc
import itertools
import json
import operator
import os
import re
import socket
import stat
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import CodeType, ModuleType
from typing import Any

SCHEMA = 1

# -- the counters file; all little-endian. `frd_agent.ranks.tap_files` reads this --

MAGIC = b"FRDTAP02"
PREFIX = struct.Struct("<8sQ")
"""Magic and sequence; 0: never written, even: whole, odd: being written."""
BODY = struct.Struct("<qqII")
"""published_at_ns (CLOCK_REALTIME, before the counters were read), published_mono_ns, row_count,
flags."""
CHECKSUM = struct.Struct("<I4x")
"""CRC-32 of body and rows."""
ROW = struct.Struct("<Biqqq")
"""recorder, pg_id, then enqueued, started and completed as `pg_status` counts them."""
HEADER_SIZE = PREFIX.size + BODY.size + CHECKSUM.size
CAPACITY = 1024
SHM_SIZE = HEADER_SIZE + CAPACITY * ROW.size
OVERFLOWED = 1
GENERIC, NCCL, HOOKED = 0, 1, 2
"""Recorders. From `HOOKED` on those of hooks, in the order of `recorders` in the identity."""

Row = tuple[int, int, int, int, int]
Limit = tuple[str, int, int, int, int]
"""Name, what it allows (negative: no limit), what is in use, what comes, and what must remain."""
Scope = tuple[tuple[str, ...], int, int]
"""A phase, as `frd_agent.phases` returns it."""

# -- the allocator's part of the same file, after the counters --------------------------------

MEMORY_MAGIC = b"FRDMEM01"
MEMORY_BODY = struct.Struct("<qqqII")
"""begin_ns and end_ns (CLOCK_REALTIME, around the reading), mono_ns, device_count, error_count; in
front of it PREFIX, after it the devices, the errors and CHECKSUM."""
DEVICE = struct.Struct("<16sqqqqq")
"""UUID (zeros: unknown); total, allocated, reserved and peak bytes; out-of-memory errors so far."""
ERROR = struct.Struct("<Qq16sqq")
"""One out-of-memory error: its number (from 1), CLOCK_REALTIME, UUID, bytes requested and free."""
MAX_DEVICES = 16
MAX_ERRORS = 16
"""The last ones."""
MEMORY_AT = SHM_SIZE
MEMORY_SIZE = (
    PREFIX.size
    + MEMORY_BODY.size
    + MAX_DEVICES * DEVICE.size
    + MAX_ERRORS * ERROR.size
    + CHECKSUM.size
)

# -- host memory, for an agent that does not see this process; after the allocator's part --------

HOST_MAGIC = b"FRDHOST1"
HOST_BODY = struct.Struct("<qqqqq")
"""begin_ns, end_ns and mono_ns as in MEMORY_BODY; bytes in use, and the limit of the cgroup (0:
none); in front of it PREFIX, after it CHECKSUM."""
HOST_AT = MEMORY_AT + MEMORY_SIZE
HOST_SIZE = PREFIX.size + HOST_BODY.size + CHECKSUM.size

Device = tuple[bytes, int, int, int, int, int]
Error = tuple[int, int, bytes, int, int]

_ESCAPED = re.compile(rb"[ \t\n\\]")
"""What the kernel writes as numbers in the name of a mount."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TORCHRUN_PORT = "29500"
"""torchrun's own choice: two jobs on one node cannot both have it."""

IGNORE_CAPTURES = "frd_ignore_captures"
"""Name of the tap's handler, which lets the thread of the worker server that runs it query events
while another thread captures a CUDA graph."""
TRACE = "frd_trace"
"""Name of the tap's handler that answers with all entries of a recorder and holds the GIL for 19 µs
an entry. Its parameter `backend`: the one whose hook records (torch 2.15), else the generic one."""
_RECORD_THEMSELVES = frozenset({"gloo", "nccl", "xccl"})
"""Backends that no hook records, as they call themselves."""
_CAPTURES_OF_THIS_THREAD = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: only captures of the same thread restrict it."""

SOCKET_PATH_MAX = 107
"""Bytes in the path of a unix socket."""
MAX_FRAMES = 64
"""Frames of the traceback in an exit record, the innermost."""
MAX_TEXT = 500
"""Characters of each text in an exit record."""
MAX_ORIGINAL = 4000
"""Characters of the traceback of a data loader's worker, the last."""
_IN_A_WORKER = "\nOriginal Traceback (most recent call last):\n"
"""torch writes this between its own message and the traceback of a worker."""

# -- intervals ------------------------------------------------------------------------------

WAIT_S = 0.3
"""Interval at which a process that may become a rank looks for process groups."""
WAIT_LONG_S = 1.0
"""The same after a minute without groups, and in forked children: most never become ranks."""
TICK_S = 0.2
"""How often a rank looks for new groups (identity comparisons only; short, because ranks number
re-initializations by counting them, and one that lives for less than this goes unnoticed), and at
its allocator. Ticks are at multiples of this on the wall clock, so that all ranks tick together."""
PUBLISH_S = 1.0
PUBLISH_MAX_S = 5.0
RESTS_S = 3.0
"""A rank without a worker server is dumped after this long without a change of its counters."""
DUMP_MAX_S = 60.0
SHARE = 1 / 500
"""Each publication slows down, as far as `PUBLISH_MAX_S` or `DUMP_MAX_S`, to take no more of a
core."""
RESCAN_S = 30.0
"""Interval at which the tap checks devices that this rank has not used so far."""
REFRESH_S = 3600.0
"""The tap rewrites the identity, so that cleaners of temporary folders do not remove it as old."""
STAGE_AFTER_S = 5.0
"""A stage shorter than this is not written: an ordinary initialization writes nothing."""
STAGE_EVERY_S = 3.0
"""How often a stage is written again while it lasts."""
LOOK_EVERY_S = 1.0
"""The same of a rank whose counters rest, from the first publication that shows it."""
PAUSE_S = 0.05
"""Between the removal of the socket's name and the end of the interpreter: requests that are under
way still get the GIL."""
INTERRUPT_S = 60.0
"""A program that ends within this time of a Ctrl-C ends because of it: it may save its state."""
HIGH_FD = 960
"""Below the usual limit of 1,024, and above what programs have open."""
JOIN_S = 2.0
"""Longest wait for the exit record at interpreter exit (a hung file system)."""

_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # the system's, as `tempfile` knows them
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace that the kernel starts with: of a process outside containers."""
MAX_LINKS = 40
_OVERFLOW_UID = "/proc/sys/kernel/overflowuid"
_LIMITS = {
    "RLIMIT_NPROC": b"Max processes",
    "RLIMIT_AS": b"Max address space",
    "RLIMIT_DATA": b"Max data size",
    "RLIMIT_MEMLOCK": b"Max locked memory",
    "RLIMIT_STACK": b"Max stack size",
    "RLIMIT_NOFILE": b"Max open files",
}
"""Lines of /proc/self/limits. The module `resource` would have to be imported."""
_RANKS_HERE = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
)
_ADDRESS_SPACE = (("RLIMIT_AS", b"VmSize:"), ("RLIMIT_DATA", b"VmData:"))
"""Limits, and lines of /proc/self/status with what counts towards them."""
_HOST_COUNTED = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""Lines of /proc/self/status, as the agent counts them (`frd_agent.memory.host.processes`)."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""In a container its own cgroup is mounted there."""

_FAULTS = ("SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS")
"""Signals of a thread's own errors."""
_BLOCKED = _signal.valid_signals() - {getattr(_signal, f"SIG{name}") for name in _FAULTS}

# -- what must remain of a limit --------------------------------------------------------------

POOL_MIN = 8
"""Threads of the worker server at least; otherwise one per core. One more accepts connections."""
LEAST_THREADS = 64
HEAP = 64 << 20
"""Address space that a thread reserves when it first allocates: of the server, when it answers."""
FEW_THREADS = 16
LEAST_BYTES = 8 << 30
"""Of address space, and a quarter of it if that is more, after the worker server's start: what the
program needs, and the heaps of a few threads. Those of more threads are added."""
LEAST_BYTES_OF_TAP = 1 << 30
LEAST_DESCRIPTORS = 64
LEAST_MAPPINGS = 1024
SERVER_DESCRIPTORS = 8
"""The socket, and connections of agents."""
MAPPINGS_A_THREAD = 4
"""Stack, its guard, and two of a heap."""
MIN_STACK = 256 << 10
"""Bytes of a thread's stack, for Python and torch."""
_DEFAULT_STACK = 8 << 20

_decode = json.JSONDecoder().decode
_place_of = operator.attrgetter("f_globals", "f_code")
_traceback_of = BaseException.__dict__["__traceback__"].__get__
"""Not by the name: a program's class may have another attribute of that name."""

THREAD_NAME = b"frd-tap"
"""Name of the tap's thread in the kernel."""
RENAMED = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
"""Settings of the Flight Recorder: present name, old name."""
ALLOW_PTRACE = "FRD_ALLOW_PTRACE"
"""Variable: 1 if `frd-agent exec --allow-ptrace` was given."""
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1).value
RING = 2_000
GLOO_SINCE, RECORDS_SINCE = (2, 8), (2, 11)
"""Versions of torch: from the first on there is a recorder of Gloo, and both names of its size are
read; from the second on its size is `RING` by default, before that 0."""
RENAMED_SINCE = (2, 10)
"""From this version of torch on: it reads the present names and warns about the old ones."""

_PHASES = "frd_agent.phases"
MAX_PHASES = 16
"""Phases in the file, the last. Up to 8 of them are open."""
MAX_PHASE_NAME = 64
"""Characters."""

_C10D = "torch.distributed.distributed_c10d"
_C10D_CODE = "torch._C._distributed_c10d"
_C10D_FILE = "torch/distributed/distributed_c10d.py"
_STAGES = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "_new_group_with_tag": "new_group",
    "split_group": "split_group",
}
"""Functions of torch that wait for other ranks and leave no entry, with the stage of each."""
_PROGRAM_THREADS = {
    "_run_target": "/ray/train/v2/_internal/execution/worker_group/thread_runner.py",
    "run": "/ray/air/_internal/util.py",  # Ray Train before its second version
}
"""Functions in which frameworks run the program, with the ends of their files, in a thread of a
process whose main thread only serves requests."""
_GROUP_THREADS = (b"pt_nccl_", b"pt_gloo_", b"gloo_tcp_")
"""Names in the kernel of threads that process groups have, of Gloo in recent releases of torch."""
_QUORUM = "async_quorum"
"""Name of the thread by which torchft makes process groups."""
_LAUNCHERS = (
    "torch/distributed/run.py",
    "torch/distributed/launch.py",
    "accelerate/commands/launch.py",
    "deepspeed/launcher/launch.py",
    "deepspeed/launcher/runner.py",
)
"""Programs that start ranks. They are not ranks, even if their environment names one."""
MAX_DEPTH = 200
"""Frames of the main thread that are looked at, the innermost."""
_installed_pid = 0
_started: tuple[Any, ...] = ()
"""What `_start` has returned, in this process or in the one that forked it."""
_leaves_by: tuple[Any, ...] = ()
"""See `_in_flight`; while the exit record is written."""
_complained_pid = 0
_refused_at = ""
"""The file by which this process shows the agent that it may not publish."""
_exchange_mode: Any = None
"""cuThreadExchangeStreamCaptureMode, once it was needed: to find it makes objects."""
_follows_forks = False
_heard: list[int] = []
"""Both ends of the pipe of `hear_signals`."""
_c: Any = None
"""The functions of the C library and of Python, once they were needed: a forked child must not look
them up."""


def install() -> None:
    """Watch this process and, once it is a rank, publish it. Never raises; twice does no harm.

    Children that multiprocessing forks are watched too. A child of os.fork that becomes a rank must
    call this itself.
    """
    # The tap may be loaded twice: by path (`frd-agent exec`) and by an import of the user.
    this = sys.modules[__name__]
    first = sys.modules.setdefault("_frd_tap", this)
    if first is not this:
        first.install()
        return
    with signals_blocked():
        try:
            _install()
        except Exception as error:
            _complain("install", error)


def _install() -> None:
    global _follows_forks
    if _installed_pid == os.getpid():
        return
    allow_ptrace(os.environ)
    hear_signals()
    atexit.register(_at_exit, *_start(None))
    _end_with_multiprocessing()
    if not _follows_forks:
        _follows_forks = True
        os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads that start meanwhile block these signals for ever. The calling thread handles what
    came in the end, so that an exception of the program's handler reaches the program."""
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())  # first: the next line may raise that
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _BLOCKED)
        yield
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def _start(inherited: Mapping[int, int] | None) -> tuple[Any, ...]:
    """`inherited`: the ranks of the default group that a forked child has from its parent; empty if
    it has none, None for a process that was not forked. Call it with signals blocked.

    Raises:
        OSError, RuntimeError: there can or should be no more thread.
    """
    global _installed_pid, _started
    if why := shortage(1):
        raise OSError(why)
    stop, ended = threading.Event(), threading.Event()
    _thread.start_new_thread(_run, (stop, ended, inherited))
    _installed_pid = os.getpid()
    _started = _installed_pid, stop, ended
    return _started


def allow_ptrace(environ: Mapping[str, str]) -> None:
    """One system call, if the user has asked for it. A kernel without Yama refuses it."""
    if environ.get(ALLOW_PTRACE) != "1":
        return
    with contextlib.suppress(Exception):
        numbers = (_PR_SET_PTRACER_ANY, *[ctypes.c_ulong(0)] * 3)
        _functions().prctl(ctypes.c_int(_PR_SET_PTRACER), *numbers)


def _functions() -> Any:
    """Calls keep the GIL: for a fork, and for a microsecond."""
    global _c
    if _c is None:
        _c = ctypes.PyDLL(None)
    return _c


class _Child:
    """The object that multiprocessing requires with a function to call in its children."""


_child = _Child()


def _forked() -> None:
    """In every forked child, inside os.fork: if multiprocessing forked it, ask it for a call."""
    allow_ptrace(os.environ)
    with contextlib.suppress(Exception):
        hear_none()
    with contextlib.suppress(Exception):
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(_child, _in_child)


def _in_child(_: _Child) -> None:
    """In a child that multiprocessing, or its forkserver, has forked, before its target runs."""
    with signals_blocked():
        _start_in_child()


def _start_in_child() -> None:
    try:
        process = sys.modules["multiprocessing.process"].current_process()
        target = getattr(process, "_target", None)
        of_loader = (getattr(target, "__module__", None) or "").startswith("torch.utils.data.")
        if of_loader:
            return
        if _installed_pid != os.getpid():  # it was forked
            inherited = _default_ranks(getattr(sys.modules.get(_C10D), "_world", None)) or {}
            hear_signals()
            _start(inherited)
        _end_with_multiprocessing()
    except Exception as error:
        _complain("forked child", error)


def _end_with_multiprocessing() -> None:
    """If this is a child of multiprocessing, or one whose modules are still being loaded."""
    module = sys.modules.get("multiprocessing.process")
    with contextlib.suppress(AttributeError, KeyError):
        if module.parent_process() or module.current_process()._inheriting:  # type: ignore[union-attr]
            util = sys.modules["multiprocessing.util"]
            util.register_after_fork(_child, _in_child)  # a forkserver's drops what is registered
            util.Finalize(None, _at_exit, _started, exitpriority=0)


def _at_exit(pid: int, stop: threading.Event, ended: threading.Event) -> None:
    global _leaves_by
    if os.getpid() == pid:
        _leaves_by = _in_flight()
        stop.set()
        ended.wait(JOIN_S)
        _leaves_by = ()


def _in_flight() -> tuple[Any, ...]:
    """Type, value and traceback of the exception by which a child of multiprocessing ends: its
    finalizers run in a `finally`. Of `sys.exit` in an `except`, what was caught there: so end the
    children of torch.multiprocessing.spawn."""
    with contextlib.suppress(Exception):
        error: Any = sys.exc_info()[1]
        if issubclass(type(error), SystemExit):
            error = error.__context__ if error.code else None
        if error is not None:
            return type(error), error, error.__traceback__
    return ()


def hear_signals() -> None:
    """From now on `interrupted` answers, if this is the main thread and no other pipe is in use."""
    global _heard
    if "trio" in sys.modules or _heard:
        return
    with contextlib.suppress(OSError, ValueError):  # not the main thread
        ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = _signal.set_wakeup_fd(-1)
            _signal.set_wakeup_fd(before)
            if before == -1:
                _heard = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for end in ends]
                _signal.set_wakeup_fd(_heard[1], warn_on_full_buffer=False)
        finally:
            for end in ends:
                os.close(end)


def hear_none() -> None:
    """Give up the pipe."""
    global _heard
    with contextlib.suppress(OSError, ValueError):  # not the main thread
        before = _signal.set_wakeup_fd(-1) if _heard else -1
        if before not in (-1, *_heard):
            _signal.set_wakeup_fd(before)
        ends, _heard = _heard, []
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def interrupted() -> bool:
    """SIGINT has come since the last call."""
    with contextlib.suppress(OSError):  # there was no signal
        for end in _heard[:1]:
            is_pipe = stat.S_ISFIFO(os.fstat(end).st_mode)  # the program may close what it finds
            return is_pipe and _signal.SIGINT in os.read(end, 1 << 16)
    return False


def _complain(what: str, error: BaseException) -> None:
    """Write the one line, bypassing `sys.stderr`: a daemon thread must not die with its lock."""
    global _complained_pid
    if _complained_pid == os.getpid() or sys.__stderr__ is None:
        return
    _complained_pid = os.getpid()
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    _warn(f"{what}: {reason}: this rank runs on without it")


def _warn(text: str) -> None:
    """With signals blocked: SIGPIPE of a stderr that no process reads must not end the program."""
    try:
        os.write(2, f"frd: warning: tap: {text}\n".encode("utf-8", "backslashreplace"))
    except BrokenPipeError:
        _signal.sigtimedwait((_signal.SIGPIPE,), 0)
    except OSError:
        pass


def settle_variables(environ: MutableMapping[str, str]) -> None:
    """Drop the old name of a setting if this torch reads the present name and both have the same
    value: torch prints a line for each old name. Call it on a thread that imports
    torch.distributed.
    """
    if _torch_version() < RENAMED_SINCE:
        return
    for present, old in RENAMED:
        if present in environ and environ.get(old) == environ[present]:
            del environ[old]


def _torch_version() -> tuple[int, ...]:
    """Major and minor; empty if unknown."""
    version = getattr(sys.modules.get("torch.version"), "__version__", "")
    major, _, rest = str(version).partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else ()


# -- the thread ------------------------------------------------------------------------------


def _run(
    stop: threading.Event, ended: threading.Event, inherited: Mapping[int, int] | None
) -> None:
    tap = None
    stage = Stage(os.environ, is_forked=inherited is not None)
    try:
        _name_thread()
        while tap is None:
            c10d = _await_groups(stop, inherited, stage)
            if c10d is None:
                return
            tap = _begin(c10d, os.environ, stage.token)
            if tap is None and stop.wait(RESCAN_S):
                return
        tap.serve()
        host = Throttle(PUBLISH_S)
        groups, memory, counters = Throttle(TICK_S), Throttle(TICK_S), Throttle(PUBLISH_S)
        stages, phases, ends = Throttle(TICK_S), Throttle(TICK_S), Throttle(TICK_S)
        dumps, threads = Throttle(PUBLISH_S, DUMP_MAX_S), Throttle(TICK_S, DUMP_MAX_S)
        while not stop.is_set():
            memory.run(tap.publish_memory)
            host.run(tap.publish_host)
            groups.run(tap.follow_groups)
            threads.run(tap.follow_threads)
            phases.run(tap.publish_phases)  # before counters: at their time the phases are known
            ends.run(tap.look_for_end)
            counters.run(tap.publish_counters)
            dumps.run(tap.publish_dumps)
            stages.run(stage.look_at_rank if tap.rests else stage.end)
            stop.wait(TICK_S - time.time() % TICK_S)
    except Exception as error:
        _complain("start", error)
    finally:
        stage.close()
        if tap is not None:
            tap.close()
        ended.set()


def _begin(c10d: Any, environ: Mapping[str, str], token: str) -> Tap | None:
    """None if this rank cannot write in the run directory, at present."""
    try:
        tap = Tap(c10d, environ, token)
    except OSError as error:
        _complain("run directory", _refusal(environ, error))
        return None
    global _refused_at
    if _refused_at:
        with contextlib.suppress(OSError):
            os.unlink(_refused_at)
        _refused_at = ""
    _warn_of_agent(run_dir(environ))
    return tap


def _warn_of_agent(directory: str) -> None:
    """If an agent of another user holds the lock of the directory. Root may have the capability to
    read all files."""
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(os.path.join(directory, "agent.lock"), flags)
        try:
            owner, mine = os.fstat(fd).st_uid, os.geteuid()
            if owner not in (0, mine):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            why = f"{directory}: the agent of uid {owner} cannot read what uid {mine} publishes"
            _warn(f"{why}: {same_user(mine)}")
        finally:
            os.close(fd)


def same_user(uid: int) -> str:
    """Advice, for ranks of that user."""
    return (
        f"run the agent as uid {uid} (in the chart agent.sidecar.runAsUser, or that of daemonset)"
    )


def refusal_path(environ: Mapping[str, str]) -> str:
    """Beside the run directory: the agent sees there that ranks of this user cannot publish."""
    parent = os.path.dirname(run_dir(environ).rstrip("/"))
    return os.path.join(parent, f"refused.{os.geteuid()}")


def _refusal(environ: Mapping[str, str], error: OSError) -> OSError:
    """What to do about it; and leave word for the agent: the name of the directory, and of the job.
    Only for a directory that was chosen: the default one is the user's own."""
    if not environ.get("FRD_RUN_DIR") or not isinstance(error, PermissionError):
        return error
    directory, mine = run_dir(environ), os.geteuid()
    global _refused_at
    path = refusal_path(environ)
    temporary = f"{path}.{os.urandom(6).hex()}"
    with contextlib.suppress(OSError):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            text = f"{os.path.basename(directory)}\n{_printable(job_of(environ))}"
            os.write(fd, text.encode("utf-8", "backslashreplace"))
            os.fchmod(fd, 0o644)
            os.replace(temporary, path)
            _refused_at = path
        except OSError:
            os.unlink(temporary)
        finally:
            os.close(fd)
    if error.errno is None and not str(error).startswith(f"{directory}: belongs to "):
        return error  # of a parent, or a link
    owner = "another user"
    with contextlib.suppress(OSError):
        owner = f"uid {os.stat(directory).st_uid}"
    why = f"{directory}: belongs to {owner}, and uid {mine} of this rank may not write there"
    return PermissionError(f"{why}: {same_user(mine)}")


class Throttle:
    """Calls a publication at an interval that depends on its cost."""

    def __init__(self, every_s: float, most_s: float = PUBLISH_MAX_S) -> None:
        self._every_s, self._most_s = every_s, most_s
        self._due = 0.0

    def run(self, publish: Callable[[], None]) -> None:
        """Call `publish` if it is due. After a failure it is tried again: a disk may recover."""
        now = time.monotonic()
        if now < self._due:
            return
        before = time.thread_time()
        try:
            publish()
            cost = time.thread_time() - before
            every_s = min(self._most_s, max(self._every_s, cost / SHARE))
        except Exception as error:
            _complain("publish", error)
            every_s = PUBLISH_S
        self._due = now - TICK_S / 2 + every_s


def _name_thread() -> None:
    """Shows agents, through /proc, that this process has a tap, although it may not be a rank."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/thread-self/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, THREAD_NAME)
        finally:
            os.close(fd)


def _await_groups(stop: threading.Event, inherited: Mapping[int, int] | None, stage: Stage) -> Any:
    """torch's module of process groups, once this process has its own default group; None
    after a stop request. Until then its stage is published."""
    began = time.monotonic()
    found = False
    stages = Throttle(PUBLISH_S)
    while not stop.wait(
        WAIT_S if inherited is None and time.monotonic() - began < 60 else WAIT_LONG_S
    ):
        if found:
            return sys.modules[_C10D]
        # One more turn: init_process_group sets a few more things after the groups.
        ranks = _default_ranks(getattr(sys.modules.get(_C10D), "_world", None))
        found = ranks is not None and ranks is not inherited
        if not found:
            stages.run(stage.look_at_no_rank)
    return None


def _default_ranks(world: Any) -> Mapping[int, int] | None:
    default = getattr(world, "default_pg", None)
    return None if default is None else world.pg_group_ranks.get(default)


# -- stages ----------------------------------------------------------------------------------


def of_main_thread(*attributes: str, ident: int | None = None) -> list[Any]:
    """Attributes of the frames of the main thread, or of thread `ident`, innermost first; empty if
    they cannot be known.

    The frames are walked inside one call of C code, see the module.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return []  # frames of a running thread cannot be walked safely
    key = operator.itemgetter(ident or threading.main_thread().ident)
    inner = map(key, iter(sys._current_frames, None))
    steps = itertools.chain(itertools.islice(inner, 1), itertools.repeat("f_back", MAX_DEPTH - 1))
    found: list[Any] = []
    with contextlib.suppress(AttributeError, LookupError):  # beyond the outermost frame
        found.extend(map(operator.attrgetter(*attributes), itertools.accumulate(steps, getattr)))
    return found


def stage_in(codes: list[CodeType]) -> str:
    """The stage that the innermost of these functions is in; empty for none."""
    for code in codes:
        if code.co_name in _STAGES and code.co_filename.endswith(_C10D_FILE):
            return _STAGES[code.co_name]
    return ""


def program_thread() -> tuple[int | None, int]:
    """The main thread, or the one in which a framework runs the program: its numbers for Python and
    for the kernel. Of the main thread of a forked process, Python may have that of its parent. All
    threads are walked only where Ray is."""
    if "ray" not in sys.modules:
        return None, os.getpid()
    for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
        for code in of_main_thread("f_code", ident=ident):
            end = _PROGRAM_THREADS.get(code.co_name)
            if end is not None and code.co_filename.endswith(end):
                return ident, thread.native_id
    return None, os.getpid()


def ran_ns(task: int) -> int | None:
    """How long that thread of this process has run; None where the kernel does not count."""
    words = _words(f"/proc/self/task/{task}/schedstat")
    return int(words[0]) or None if words else None


def launch_of(environ: Mapping[str, str], others: int = 1) -> tuple[int, int] | None:
    """Rank and world size, if the environment has all that init_process_group reads by default and
    there are others to wait for: the world is larger than `others`."""
    rank, size = _number(environ, -1, "RANK"), _number(environ, 0, "WORLD_SIZE")
    meets = bool(environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"))
    return (rank, size) if meets and 0 <= rank < size and size > others else None


def has_groups() -> bool:
    """Whether threads of process groups run. Without a default group, they are the program's."""
    threads = list(threading._active.items())  # type: ignore[attr-defined]
    if any(stage_in(of_main_thread("f_code", ident=ident)) for ident, _ in threads):
        return False  # one of them makes the default group
    if any(str(thread._name).startswith(_QUORUM) for _, thread in threads):
        return True
    paths = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
    return any(_content(path).startswith(_GROUP_THREADS) for path in paths)


class Stage:
    """Publishes that this process waits to become a rank; and where a rank is while its counters
    rest. Used only on the tap's thread.

    A helper process inherits the environment of its rank. Whether this process is the rank that its
    environment names is for the agent to judge.
    """

    def __init__(self, environ: Mapping[str, str], *, is_forked: bool) -> None:
        self.token = os.urandom(6).hex()
        self._environ = environ
        self._may_form = not is_forked
        self._has_groups = False
        self._op = ""
        self._since, self._since_ns = time.monotonic(), time.time_ns()
        self._written_at: float | None = None
        self._claim: dict[str, Any] | None = None
        self._places: list[tuple[CodeType, int | None]] = []
        """Of this look. They are dropped before its end: else the program's last references might
        be these, and its objects end on this thread."""
        self._ran_ns: int | None = None
        self._path = ""
        self._threads: set[int] = set()
        self._is_program_known = False
        self._program: tuple[int | None, int] = (None, 0)
        """See `program_thread`."""

    def look_at_rank(self) -> None:
        """The process is a rank, and its counters rest."""
        now = time.monotonic()
        if self._claim is None and self._written_at is not None:
            if now - self._written_at < LOOK_EVERY_S - TICK_S / 2:
                return
        else:
            self._claim, self._op, self._since_ns = None, "", time.time_ns()
        self._find_program()
        ident, task = self._program
        self._places = of_main_thread("f_code", "f_lineno", ident=ident)
        self._ran_ns = ran_ns(task)
        if self._places:
            self._find_op(now)
            self._write(now)

    def _find_program(self) -> None:
        """At the first two looks at the same threads: at the first, one of them may just begin."""
        threads = set(threading._active)  # type: ignore[attr-defined]
        if threads != self._threads or not self._is_program_known:
            self._is_program_known, self._threads = threads == self._threads, threads
            self._program = program_thread()

    def look_at_no_rank(self) -> None:
        may_be_rank = self._may_form and launch_of(self._environ, 0) is not None
        self._has_groups = may_be_rank and has_groups()
        launch = launch_of(self._environ, 0 if self._has_groups else 1)
        self._places = of_main_thread("f_code", "f_lineno") if launch is not None else []
        if launch is None or not self._places:
            self.end()
            return
        rank, size = launch
        if self._claim is None or launch != (self._claim["rank"], self._claim["world_size"]):
            claim = {"attempt": attempt_of(self._environ), "rank": rank, "world_size": size}
            self._claim = identity_of(self._environ, self.token, None) | claim | {"groups": []}
        starts_ranks = any(code.co_filename.endswith(_LAUNCHERS) for code, _ in self._places)
        shows = self._has_groups or "LOCAL_RANK" in self._environ
        self._follow(shows=shows and self._may_form and not starts_ranks)

    def _follow(self, *, shows: bool) -> None:
        """`shows`: the process is published without a stage, too."""
        now = time.monotonic()
        is_new = self._find_op(now)
        if not self._op and not shows:
            self.end()
        elif self._written_at is not None:
            if is_new or now - self._written_at >= STAGE_EVERY_S:
                self._write(now)
        elif now - self._since >= STAGE_AFTER_S:
            self._write(now)
        self._places = []

    def _find_op(self, now: float) -> bool:
        """Whether it is another one than before."""
        op = stage_in([code for code, _ in self._places])
        if is_new := op != self._op:
            self._op, self._since, self._since_ns = op, now, time.time_ns()
        return is_new

    def _write(self, now: float, ended: Mapping[str, Any] | None = None) -> None:
        self._written_at = now
        directory = run_dir(self._environ)
        self._path = os.path.join(directory, self.token + ".stage")
        stage = {
            "schema": SCHEMA,
            "token": self.token,
            "pid": os.getpid(),
            "start_ticks": _start_ticks(),
            "pid_namespace": pid_namespace(),
            "op": self._op,
            "since_ns": self._since_ns,
            "as_of_ns": time.time_ns(),
            "frames": [_place(code, line) for code, line in self._places[:MAX_FRAMES]],
            "ran_ns": self._ran_ns,
            "claim": self._claim,
            "has_groups": self._has_groups,
            "exit": ended,
        }
        self._places = []
        try:
            make_run_dir(directory)
            write_whole(directory, self.token, ".stage", json.dumps(stage))
        except OSError as error:
            if self._claim is None:
                raise  # the agent knows this rank
            raise _refusal(self._environ, error) from None

    def end(self) -> None:
        """Nothing is published any more."""
        if self._written_at is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._written_at = None

    def close(self) -> None:
        """At exit: a process that was published and never became a rank says how it ended."""
        try:
            if self._written_at is not None and self._claim is not None:
                self._write(time.monotonic(), _exit_record(time.time_ns()))
            else:
                self.end()
        except Exception as error:
            _complain("stage", error)


def _start_ticks() -> int:
    """When this process started, as /proc shows it; 0 if it does not."""
    raw = _content("/proc/self/stat")
    with contextlib.suppress(ValueError, IndexError):
        return int(raw[raw.rfind(b")") + 2 :].split()[19])
    return 0


def pid_namespace() -> int:
    """Its inode; 0 if /proc does not show it."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


# -- limits ------------------------------------------------------------------------------------


def pool_size() -> int:
    """Threads of the worker server's pool: C++ counts the cores that are online, whatever the
    affinity of the process."""
    return max(POOL_MIN, os.sysconf("SC_NPROCESSORS_ONLN"))


def shortage(threads: int, *, is_server: bool = False, processes: int = 1) -> str:
    """Why the process should not start so many more threads: afterwards a limit would be near, and
    the program needs the rest. Empty if nothing speaks against it.

    The worker server (`is_server`) leaves a quarter of each limit, since it ends the process if it
    cannot start a thread. The tap's own thread only leaves a number. `processes` start as many at
    the same time: the ranks of a node.
    """
    if is_server and not _content("/proc/self/status"):
        return "/proc cannot be read, so no limit is known"
    stack = _soft("RLIMIT_STACK")
    stack = _DEFAULT_STACK if stack < 0 else stack
    if not is_server:  # of threads that Python starts, the program may have set it
        stack = _thread.stack_size() or stack
    if stack < MIN_STACK:
        return f"stacks of threads have {stack} bytes: less than {MIN_STACK}"
    limits = _thread_limits(threads * processes, is_server)
    limits = itertools.chain(limits, _byte_limits(threads, stack, processes, is_server))
    return _first_near(itertools.chain(limits, _server_limits(threads)) if is_server else limits)


def short_of_bytes() -> str:
    """Why the tap should not take some MiB for a moment."""
    return _first_near(_byte_limits(1, _DEFAULT_STACK, 1, is_server=False))


def _first_near(limits: Iterable[Limit]) -> str:
    return next(filter(None, (_near(*limit) for limit in limits)), "")


def _near(name: str, most: int, used: int, more: int, reserve: int) -> str:
    if most < 0 or most - used - more >= reserve:
        return ""
    return f"{name}: {used} of {most} in use, and {more} more would leave less than {reserve}"


def _thread_limits(more: int, is_server: bool) -> Iterator[Limit]:
    def limit(name: str, most: int, used: int) -> Limit:
        return name, most, used, more, max(LEAST_THREADS, most // 4 if is_server else 0)

    total = _words("/proc/loadavg")[3:4]
    running = int(total[0].rpartition(b"/")[2]) if total else 0
    for path in ("kernel/threads-max", "kernel/pid_max"):
        yield limit(path.replace("/", "."), _number_in(f"/proc/sys/{path}"), running)
    for folder in _pids_folders():
        used = _number_in(f"{folder}/pids.current")
        yield limit(f"{folder}/pids.max", _number_in(f"{folder}/pids.max"), used)
    most = _soft("RLIMIT_NPROC")
    if most >= 0 and is_server and pid_namespace() != FIRST_PID_NAMESPACE:
        # Threads of the same user in other containers count too, and are not seen.
        name = "RLIMIT_NPROC, in a pid namespace"
        yield name, most, _threads_of_user(), more, most - most // 4
    elif most >= 0 and (not running or _near(*limit("", most, running))):
        # Not even all threads of the kernel would be too many, or the user's are counted.
        yield limit("RLIMIT_NPROC", most, _threads_of_user())


def _byte_limits(threads: int, stack: int, processes: int, is_server: bool) -> Iterator[Limit]:
    """Of address space."""
    more, heaps = threads * stack, max(threads - FEW_THREADS, 0) * HEAP
    words = _words("/proc/self/status")
    found = [(name, _soft(name), _bytes(words, line)) for name, line in _ADDRESS_SPACE]
    locked = _bytes(words, b"VmLck:")
    if is_server and locked:  # the program locks its memory, and so perhaps stacks
        found.append(("RLIMIT_MEMLOCK", _soft("RLIMIT_MEMLOCK"), locked))
    if _number_in("/proc/sys/vm/overcommit_memory") == 2:
        words = _words("/proc/meminfo")
        used = _bytes(words, b"Committed_AS:") + (processes - 1) * more
        found.append(("CommitLimit of /proc/meminfo", _bytes(words, b"CommitLimit:"), used))
    for name, most, used in found:
        least = max(LEAST_BYTES + heaps, most // 4) if is_server else LEAST_BYTES_OF_TAP
        yield name, most, used, more, least


def _server_limits(threads: int) -> Iterator[Limit]:
    most, used = _number_in("/proc/sys/vm/max_map_count"), _content("/proc/self/maps", 0)
    more = threads * MAPPINGS_A_THREAD
    yield "vm.max_map_count", most, used.count(b"\n"), more, LEAST_MAPPINGS
    files = len(os.listdir("/proc/self/fd"))
    yield "RLIMIT_NOFILE", _soft("RLIMIT_NOFILE"), files, SERVER_DESCRIPTORS, LEAST_DESCRIPTORS


def _pids_folders() -> Iterator[str]:
    """The cgroup of this process and its parents, where they can be seen."""
    for line in _content("/proc/self/cgroup").decode("utf-8", "surrogateescape").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots = ["/sys/fs/cgroup/pids"] if "pids" in controllers.split(",") else []
        if number == "0" and not controllers:
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        for root in roots:
            folder = path.rstrip("/")
            while folder:
                yield root + folder
                folder = folder.rpartition("/")[0]
            yield root


def _threads_of_user() -> int:
    """Of all processes of this user that can be seen. The owner of the folder says less: it is root
    for a process that has changed its user."""
    user, threads = str(os.getuid()).encode(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ValueError, IndexError):
            words = _words(f"/proc/{name}/status")
            if words[words.index(b"Uid:") + 1] == user:
                threads += int(words[words.index(b"Threads:") + 1])
    return threads


def _soft(name: str) -> int:
    """-1: none."""
    line = _content("/proc/self/limits").partition(_LIMITS[name])[2].split(b"\n", 1)[0].split()
    return int(line[0]) if line and line[0].isdigit() else -1


def _number_in(path: str) -> int:
    """-1 if there is none."""
    text = _content(path).strip()
    return int(text) if text.isdigit() else -1


def _words(path: str) -> list[bytes]:
    return _content(path).split()


def _bytes(words: list[bytes], line: bytes) -> int:
    """What the line gives in kB; 0 without it."""
    return int(words[words.index(line) + 1]) << 10 if line in words else 0


# -- what is published -------------------------------------------------------------------------


class Membership:
    """The present process groups of torch, each encoded as JSON once.

    The identity of its rank mapping identifies a group: a plain dict, which is safe to hold.
    Holding it also prevents that a new mapping gets the id of a dead one."""

    def __init__(self, c10d: Any) -> None:
        self._c10d = c10d
        self._mappings: tuple[Any, ...] = ()
        self._default: Any = None
        self._texts: dict[int, str] = {}
        self.generation = 0
        """How many earlier default groups this process has seen destroyed."""
        self.rank = 0
        self.world_size = 0
        self.backends: list[str] = []
        self.hooked: list[str] = []
        """Backends whose ops are recorded by a hook (torch 2.15), in the order of their first
        group."""
        self.changed()

    def changed(self) -> bool:
        world = self._c10d._world
        mappings = tuple(world.pg_group_ranks.values())
        if len(mappings) == len(self._mappings) and all(
            map(operator.is_, mappings, self._mappings)
        ):
            return False
        default = _default_ranks(world)
        if default is not None and default is not self._default:
            self.generation += self._default is not None
            self._default = default
            self.rank, self.world_size = world.default_pg.rank(), world.default_pg.size()
        groups = list(world.pg_group_ranks.items())
        for group in list(getattr(world, "pg_flight_recorder_hooks", ())):
            self.hooked += [name for name in _hooked(group) if name not in self.hooked]
        self._texts = self._written(world, groups)
        self._mappings = tuple(ranks for _, ranks in groups)
        return True

    def _written(self, world: Any, groups: list[tuple[Any, Any]]) -> dict[int, str]:
        texts: dict[int, str] = {}
        for group, ranks in groups:
            name = world.pg_names.get(group)
            if name is None:
                continue  # half destroyed
            known = self._texts.get(id(ranks))
            if known is None:
                backends = _backends(group, world.pg_backend_config.get(group) or "")
                if ranks is self._default:
                    self.backends = backends
                known = json.dumps(
                    {
                        "name": str(name),
                        "desc": str(getattr(group, "group_desc", "")),
                        "ranks": sorted(ranks) if self._are_global(world, group, ranks) else [],
                        "backend": ",".join(backends),
                    }
                )
            texts[id(ranks)] = known
        return texts

    def _are_global(self, world: Any, group: Any, ranks: Mapping[int, int]) -> bool:
        """Not of a group with members of other jobs, which its members set up at a store that is
        not the job's. Programs that do so pretend that group ranks are global ranks."""
        stores = [_store(world, one) for one in (group, world.default_pg or group)]
        is_at_home = stores[0] is stores[1] and ranks.get(self.rank) == group.rank()
        return is_at_home and max(ranks) < self.world_size

    def text(self) -> str:
        return f"[{', '.join(self._texts.values())}]"


def _store(world: Any, group: Any) -> Any:
    """Behind all prefixes."""
    store = world.pg_map.get(group, (None, None))[1]
    while (base := getattr(store, "underlying_store", None)) is not None:
        store = base
    return store


def _backends(group: Any, config: str) -> list[str]:
    """`cpu:gloo,cuda:nccl` names a backend for every device; registered devices are in use."""
    devices = {device.type for device in getattr(group, "_device_types", ())}
    pairs = [part.rpartition(":") for part in config.split(",") if part]
    used = {
        backend for device, _, backend in pairs if not devices or not device or device in devices
    }
    return sorted(used)


def _hooked(group: Any) -> Iterator[str]:
    """The recorders of its backends, without those that record themselves."""
    for device in group._device_types:
        with contextlib.suppress(Exception):
            name = str(group._get_backend(device).name()).replace(":", "_")
            if name and name not in _RECORD_THEMSELVES:
                yield name


def phases_of(module: Any) -> list[Scope]:
    """The phases that the program is in, outermost first, after the last that have ended. `module`:
    `frd_agent.phases`; None if the program has not imported it."""
    main = threading.main_thread().ident
    read: Callable[[int | None], list[Scope]] | None = getattr(module, "read", None)
    return read(main)[-MAX_PHASES:] if read is not None else []


class Allocator:
    """torch's CUDA allocator, only where the program itself has initialized CUDA, and the
    allocations that failed because memory was exhausted."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, int]] = {}
        """UUID and size of the devices that this rank has used."""
        self._rescan_at = 0.0
        self._usable = True
        self._failed: deque[tuple[int, int, int, int, int]] = deque(maxlen=MAX_ERRORS)
        """Number, time, device index, bytes requested, bytes free."""
        self._numbers = itertools.count(1)
        self._observing = False

    def read(self) -> list[Device] | None:
        """None if there is nothing to read."""
        cuda = sys.modules.get("torch.cuda")
        if not self._usable or cuda is None or not cuda.is_initialized():
            return None
        self._observe()
        try:
            return self._read(cuda)
        except Exception:
            self._usable = False  # a replaced allocator that keeps no counters
            return None

    def _read(self, cuda: Any) -> list[Device]:
        now = time.monotonic()
        rescan = now >= self._rescan_at or not self._known
        if rescan:
            self._rescan_at = now + RESCAN_S
        devices = []
        for device in range(cuda.device_count()) if rescan else list(self._known):
            stats = cuda.memory_stats_as_nested_dict(device)
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            if device not in self._known:
                if not reserved["peak"] and not stats["num_ooms"]:
                    continue
                self._known[device] = _device(cuda.get_device_properties(device))
            devices.append(
                (
                    *self._known[device],
                    allocated["current"],
                    reserved["current"],
                    allocated["peak"],
                    stats["num_ooms"],
                )
            )
        return devices[:MAX_DEVICES]

    def devices(self) -> list[str]:
        """UUIDs of the devices that this rank has used, as the driver writes them."""
        return [spelled(uuid) for uuid, _ in self._known.values() if any(uuid)]

    def errors(self) -> list[Error]:
        unknown = (bytes(16), 0)
        return [
            (number, at_ns, self._known.get(device, unknown)[0], requested, free)
            for number, at_ns, device, requested, free in list(self._failed)
        ]

    def _observe(self) -> None:
        """Once; torch keeps the observer as long as the process lives."""
        if not self._observing:
            self._observing = True
            torch = sys.modules.get("torch._C")
            attach = getattr(torch, "_cuda_attach_out_of_memory_observer", None)
            if attach is not None:
                with contextlib.suppress(Exception):  # a replaced allocator that has no observers
                    attach(self.record_error)

    def record_error(self, device: int, requested: int, _device_total: int, free: int) -> None:
        """torch calls this in the thread whose allocation fails. An error here would reach the
        program, so only the exception of a signal handler passes: it is the program's own."""
        with contextlib.suppress(Exception):
            self._failed.append((next(self._numbers), time.time_ns(), device, requested, free))


def _device(properties: Any) -> tuple[bytes, int]:
    """UUID and size. torch has its own type of UUID, which old releases lack."""
    digits = str(getattr(properties, "uuid", "")).replace("-", "")
    uuid = bytes(16)
    with contextlib.suppress(ValueError):
        uuid = bytes.fromhex(digits) if len(digits) == 32 else uuid
    return uuid, int(getattr(properties, "total_memory", 0))


def spelled(uuid: bytes) -> str:
    digits = uuid.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class HostMemory:
    """The memory of this process and the limit of its cgroup. Only in a container: there the agent
    may not see the process. Children are not counted."""

    def __init__(self) -> None:
        self._is_contained = pid_namespace() not in (0, FIRST_PID_NAMESPACE)
        self._limit = 0
        self._look_at = 0.0

    def read(self) -> tuple[int, int] | None:
        """Bytes in use, and the limit (0: none); None if the agent reads them itself."""
        if not self._is_contained:
            return None
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + RESCAN_S
            texts = [_content(path).strip() for path in _CGROUP_LIMITS]
            self._limit = next((min(int(text), 2**62) for text in texts if text.isdigit()), 0)
        words = _words("/proc/self/status")
        used = [_bytes(words, line) for line in _HOST_COUNTED if line in words]
        return (sum(used), self._limit) if used else None


def _content(path: str, most: int = 8192) -> bytes:
    """The first `most` bytes, 0: all. Empty if it cannot be read."""
    blocks = []
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            blocks.append(os.read(fd, most or 1 << 16))
            while blocks[-1] and not most:
                blocks.append(os.read(fd, 1 << 16))
        finally:
            os.close(fd)
    return b"".join(blocks)


class Counters:
    """The recorders' `pg_status`: what each group has enqueued, started and completed. Of those
    that no worker server gives, all that they have."""

    def __init__(self, ext: Any) -> None:
        self._generic = getattr(ext, "_dump_fr_trace_json", None)
        found: list[tuple[int, str, Any, dict[str, Any]]] = [
            (GENERIC, "fr_trace_json", self._generic, {}),
            (NCCL, "dump_nccl_trace_json", getattr(ext, "_dump_nccl_trace_json", None), {}),
        ]
        self._dumps = [one for one in found if one[2] is not None]

    def follow(self, hooked: Iterable[str]) -> None:
        """Backends whose ops are recorded by a hook, those before first."""
        read = [one for one in self._dumps if one[0] < HOOKED]
        for number, name in enumerate(hooked, HOOKED):
            read.append((number, f"{TRACE}?{name}", self._generic, {"backend": name}))
        self._dumps = read

    def numbers(self, given: Iterable[str] = ()) -> list[int]:
        """Of the recorders of this torch that no handler of these names gives."""
        return [one[0] for one in self._dumps if one[1].partition("?")[0] not in given]

    def dump(self, numbers: list[int]) -> dict[str, str]:
        """By the request to a worker server that is answered with the same."""
        exempt_from_captures()
        wanted = [one for one in self._dumps if one[0] in numbers]
        return {name: _text(dump(includeCollectives=True, **of)) for _, name, dump, of in wanted}

    def read(self) -> list[Row]:
        rows = []
        for recorder, _, dump, of in self._dumps:
            answer = _text(dump(includeCollectives=False, **of))
            status = _decode(answer).get("pg_status") or {}
            rows += [
                (
                    recorder,
                    int(pg_id),
                    int(counts.get("last_enqueued_collective", -1)),
                    int(counts.get("last_started_collective", -1)),
                    int(counts.get("last_completed_collective", -1)),
                )
                for pg_id, counts in status.items()
            ]
        return rows


def _text(read: Any) -> str:
    """torch gives bytes."""
    return read if isinstance(read, str) else str(read, "utf-8")


# -- where it is published ---------------------------------------------------------------------


def ring_of(environ: Mapping[str, str]) -> tuple[int, str]:
    """Most entries of each of torch's recorders; and if that is 0, the setting that switches them
    off, ``default`` if torch does. Of both names the first that is set counts."""
    version = _torch_version()
    for name in RENAMED[0] if version >= GLOO_SINCE else RENAMED[0][1:]:
        if given := environ.get(name):
            size = int(given) if given.lstrip("-").isdecimal() else RING
            return max(size, 0), "" if size > 0 else f"{name}={given}"
    return (0, "default") if GLOO_SINCE <= version < RECORDS_SINCE else (RING, "")


def default_run_dir(environ: Mapping[str, str]) -> str:
    """It may not exist, and there may be no place for it: `make_run_dir` then raises. So this does
    not call `tempfile.gettempdir`, which writes a file, and raises where it cannot."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "frd")
    places = [*filter(None, map(environ.get, ("TMPDIR", "TEMP", "TMP"))), *_TEMPORARY]
    usable = [place for place in places if os.access(place, os.W_OK | os.X_OK)]
    return os.path.abspath(os.path.join([*usable, _TEMPORARY[0]][0], f"frd-{os.getuid()}"))


def run_dir(environ: Mapping[str, str]) -> str:
    """The run directory, which the taps and the agent of one user share."""
    given = environ.get("FRD_RUN_DIR")
    return os.path.abspath(given) if given else default_run_dir(environ)


def make_run_dir(path: str) -> None:
    """Make the run directory, or one below it, if there is none.

    Raises:
        OSError: it cannot be made, or others could change what is in it (`check_home`).
    """
    check_home(path, os.geteuid(), make=True)


def check_home(path: str, uid: int, *, make: bool = False) -> None:
    """Whether files of the user `uid` are safe in a directory.

    It belongs to this user, and no other user may write there. Or it is shared: it belongs to root,
    and no user can remove what another one has made, because it is sticky; or it is the root of a
    mount, as the volume of a pod is, whose users trust each other. Each of its parents belongs to
    root, to this user, or to the uid by which a user namespace shows users that it does not know;
    and it is sticky, not writable for others, or the root of a mount. So no other user can replace
    a part of the path between its check and its use. The unknown users of a namespace are many: of
    the directory itself, that uid says nothing, and only a mount does.

    The last part of `path` may be no symbolic link. A link before that must belong to one of the
    owners above; what it leads to is checked in the same way. `make`: make what is missing.

    Raises:
        PermissionError: without an errno: others could change what is in it; the text says why.
        OSError: it does not exist, or cannot be made.
    """
    others = 0, _number_in(_OVERFLOW_UID)
    names, at, links = os.path.abspath(path).split("/")[:0:-1], "", 0
    while names:
        name = names.pop()
        if name in ("", ".", ".."):
            at = os.path.dirname(at).rstrip("/") if name == ".." else at
            continue
        where, is_last = f"{at}/{name}", not names
        if make and not os.path.lexists(where):
            with contextlib.suppress(FileExistsError):  # another rank has made it
                os.mkdir(where, 0o700 if is_last else 0o755)
        found = os.lstat(where)
        if stat.S_ISLNK(found.st_mode) and links < MAX_LINKS:
            if is_last or found.st_uid not in (uid, *others):
                raise _unsafe(where, f"is a symbolic link of uid {found.st_uid}")
            target, links = os.readlink(where), links + 1
            names += target.split("/")[::-1]
            at = "" if target.startswith("/") else at
            continue
        at, is_open = where, found.st_mode & 0o022
        if not stat.S_ISDIR(found.st_mode):
            raise _unsafe(at, "is not a directory")
        if found.st_uid not in (uid, *others) or (is_last and found.st_uid != uid and not is_open):
            raise _unsafe(at, f"belongs to uid {found.st_uid}, not to uid {uid}")
        is_sticky = found.st_mode & stat.S_ISVTX and (found.st_uid == 0 or not is_last)
        is_kept = is_sticky or (is_open and _is_mount(at))
        if is_open and not is_kept:
            raise _unsafe(at, "other users may change what is in it")


def _is_mount(path: str) -> bool:
    """Something is mounted there, perhaps of the same file system."""
    name = _ESCAPED.sub(lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
    lines = _content("/proc/self/mountinfo", 0).splitlines()
    return any(line.split()[4] == name for line in lines)


def _unsafe(path: str, why: str) -> PermissionError:
    advice = "name a directory that only its user may write to (FRD_RUN_DIR, --run-dir)"
    return PermissionError(f"{path}: {why}: {advice}")


def write_whole(directory: str, token: str, suffix: str, text: str) -> None:
    """Replace a file as a whole. Raises OSError."""
    check_home(directory, os.geteuid())  # it may have been replaced
    temporary = os.path.join(directory, "." + token + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    rest = memoryview(text.encode())
    fd = os.open(temporary, flags, 0o600)
    try:
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.replace(temporary, os.path.join(directory, token + suffix))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class Files:
    """The files of one rank. Everything here may raise OSError."""

    def __init__(self, directory: str, token: str) -> None:
        self._directory, self._token = directory, token
        self._shm = os.path.join(directory, token + ".shm")
        self._sequence = 0
        self._memory_sequence = 0
        self._host_sequence = 0
        fd = os.open(self._shm, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, HOST_AT + HOST_SIZE)
        except OSError:
            os.unlink(self._shm)  # the next try makes it again
            raise
        finally:
            os.close(fd)

    def write_identity(self, text: str) -> None:
        write_whole(self._directory, self._token, ".json", text)

    def write_phases(self, phases: list[Scope]) -> None:
        names = ("path", "since_ns", "until_ns")
        content = {
            "schema": SCHEMA,
            "token": self._token,
            "phases": [
                dict(zip(names, ([_printable(name, MAX_PHASE_NAME) for name in path], *times)))
                for path, *times in phases
            ],
        }
        write_whole(self._directory, self._token, ".phases", json.dumps(content))

    def write_dumps(self, at_ns: int, dumps: Mapping[str, str]) -> None:
        head = json.dumps({"schema": SCHEMA, "token": self._token, "at_ns": at_ns})
        each = ", ".join([f'"{name}": {text}' for name, text in dumps.items()])
        text = f'{head[:-1]}, "recorders": {{{each}}}}}'
        write_whole(self._directory, self._token, ".dumps", text)

    def write_counters(self, at_ns: int, mono_ns: int, rows: list[Row]) -> None:
        flags = OVERFLOWED if len(rows) > CAPACITY else 0
        rows = rows[:CAPACITY]
        body = BODY.pack(at_ns, mono_ns, len(rows), flags)
        packed = b"".join([ROW.pack(*row) for row in rows])
        checksum = CHECKSUM.pack(zlib.crc32(packed, zlib.crc32(body)))
        self._sequence += 2
        self._write(PREFIX.pack(MAGIC, self._sequence) + body + checksum + packed, 0)

    def write_memory(
        self, begin_ns: int, end_ns: int, mono_ns: int, devices: list[Device], errors: list[Error]
    ) -> None:
        """At most `MAX_DEVICES` and `MAX_ERRORS`."""
        body = MEMORY_BODY.pack(begin_ns, end_ns, mono_ns, len(devices), len(errors))
        body += b"".join([DEVICE.pack(*device) for device in devices])
        body += b"".join([ERROR.pack(*error) for error in errors])
        self._memory_sequence += 2
        prefix = PREFIX.pack(MEMORY_MAGIC, self._memory_sequence)
        self._write(prefix + body + CHECKSUM.pack(zlib.crc32(body)), MEMORY_AT)

    def write_host(self, begin_ns: int, end_ns: int, mono_ns: int, used: int, limit: int) -> None:
        body = HOST_BODY.pack(begin_ns, end_ns, mono_ns, used, limit)
        self._host_sequence += 2
        prefix = PREFIX.pack(HOST_MAGIC, self._host_sequence)
        self._write(prefix + body + CHECKSUM.pack(zlib.crc32(body)), HOST_AT)

    def _write(self, whole: bytes, at: int) -> None:
        """Write in one call. A torn read fails the checksum, and the agent reads again."""
        check_home(self._directory, os.geteuid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # not to wait for a pipe
        fd = os.open(self._shm, flags, 0o600)
        try:
            os.pwrite(fd, whole, at)
        finally:
            os.close(fd)


def identity_of(environ: Mapping[str, str], token: str, init_method: str | None) -> dict[str, Any]:
    """The part of the identity that does not depend on groups."""
    return {
        "schema": SCHEMA,
        "token": token,
        "job": job_of(environ, init_method),
        "run": run_of(environ, init_method),
        "local_rank": _number(environ, -1, "LOCAL_RANK", "SLURM_LOCALID"),
        "pid": os.getpid(),
        "start_ticks": _start_ticks(),
        "pid_namespace": pid_namespace(),
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "torch_version": str(getattr(sys.modules.get("torch"), "__version__", "")),
        "devices": [],
        "started_at_ns": time.time_ns(),
        "socket": None,
        "shm": None,
        "exit": None,
    }


class Tap:
    """Publishes one rank. Used only on the tap's thread."""

    def __init__(self, c10d: Any, environ: Mapping[str, str], token: str) -> None:
        self._directory = run_dir(environ)
        self._token = token
        self._membership = Membership(c10d)
        self._publish_again_at = 0.0
        self._ext: Any = sys.modules.get(_C10D_CODE)
        self._counters = Counters(self._ext)
        self._counters.follow(self._membership.hooked)
        self._allocator = Allocator()
        self._host = HostMemory()
        self._attempt = attempt_of(environ)
        self._ranks_here = ranks_here(environ, self._membership.world_size)
        init_method = getattr(c10d, "_default_pg_init_method", None)
        self._identity = identity_of(environ, token, init_method)
        self._identity |= {"shm": token + ".shm", "dumps": None, "raised": None, "printed": None}
        ring, off = ring_of(environ)
        self._identity |= {"kept": self._counters.numbers(), "off": off, "ring": ring}
        self._threads: set[int] = set()
        self._has_one_ended = False
        """A thread, since the last look for what it raised."""
        self._phases: list[Scope] = []
        self._raised = id(None)
        self._interrupted_at = float("-inf")
        self._rows: list[Row] | None = None
        self._given: Iterable[str] = ()
        """Handlers of the worker server. Recorders that none of them gives are published."""
        self._unserved: list[Row] = []
        """Their counters."""
        self._dumped: list[Row] | None = None
        """The same at the last dump."""
        self._moved_at = 0.0
        """When the counters were last seen to differ."""
        self.rests = False
        """No counter has moved between the last two publications."""
        make_run_dir(self._directory)
        self._files = Files(self._directory, self._token)

    def serve(self) -> None:
        """Start torch's worker server; if it does not run, the identity has the reason."""
        path = os.path.join(self._directory, self._token + ".sock")
        try:
            why = shortage(1 + pool_size(), is_server=True, processes=self._ranks_here)
        except Exception as error:
            why = f"the limits cannot be read: {error}"
        if why:
            self._identity["socket_error"] = f"torch's worker server is not started: {why}"
            self._publish_at_rest()
            return
        try:
            _register_handlers(self._ext)
            server = _start_server(self._ext, path)
            _functions().Py_IncRef(ctypes.py_object(server))  # for ever: see the module
            os.chmod(path, 0o600)
            if names := getattr(self._ext, "_get_handler_names", None):  # torch 2.4 has none
                self._publish_at_rest(names())
            self._identity["socket"] = self._token + ".sock"
        except Exception as error:
            self._identity["socket_error"] = str(error).partition("\n")[0][:300]
            self._publish_at_rest()
            _complain("worker server", error)

    def _publish_at_rest(self, given: Iterable[str] = ()) -> None:
        self._given = given
        self._identity["dumps"] = self._token + ".dumps" if self._counters.numbers(given) else None

    def follow_groups(self) -> None:
        now = time.monotonic()
        if self._membership.changed():
            self._counters.follow(self._membership.hooked)
            self._publish_again_at = now
        if now >= self._publish_again_at:
            self.publish_identity()
            self._publish_again_at = now + REFRESH_S

    def publish_identity(self) -> None:
        known = self._membership
        self._identity.update(
            attempt=self._attempt + known.generation,
            rank=known.rank,
            world_size=known.world_size,
            backends=known.backends,
            recorders=known.hooked,
        )
        text = json.dumps(self._identity)
        self._files.write_identity(f'{text[:-1]}, "groups": {known.text()}}}')

    def follow_threads(self, *, is_over: bool = False) -> None:
        """Once a thread has ended and none trains, publish what the one that trained has raised:
        the program may keep that exception to itself and end by `os._exit`."""
        threads, raised = set(threading._active), self._identity["raised"]  # type: ignore[attr-defined]
        self._has_one_ended |= bool(self._threads - threads)
        if threads == self._threads and not is_over:
            return
        self._threads = threads
        where = ("f_globals", "f_code")
        places = [place for one in threads for place in of_main_thread(*where, ident=one)]
        if _use_torch(places):
            raised = None
        elif places and self._has_one_ended:
            self._has_one_ended, raised = False, raised_in_thread()
        if raised is not self._identity["raised"]:
            self._identity["raised"] = raised
            self.publish_identity()

    def publish_counters(self) -> None:
        at_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        rows = self._counters.read()
        self.rests, self._rows = rows == self._rows, rows
        self._files.write_counters(at_ns, mono_ns, rows)
        numbers = self._counters.numbers(self._given)
        mine = [row for row in rows if row[0] in numbers]
        if mine != self._unserved:
            self._unserved, self._moved_at = mine, time.monotonic()

    def publish_dumps(self) -> None:
        """Once the counters rest after they have moved. The call holds the GIL, for 16 µs an
        entry."""
        rest_s, rows = time.monotonic() - self._moved_at, self._unserved
        if rest_s >= RESTS_S and rows and rows != self._dumped and not short_of_bytes():
            numbers = self._counters.numbers(self._given)
            self._files.write_dumps(time.time_ns(), self._counters.dump(numbers))
            self._dumped = rows

    def publish_memory(self) -> None:
        begin_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        read = self._allocator.read()
        if read is None:
            return
        errors = self._allocator.errors()
        self._files.write_memory(begin_ns, time.time_ns(), mono_ns, read, errors)
        devices = self._allocator.devices()
        if devices != self._identity["devices"]:
            self._identity["devices"] = devices
            self.publish_identity()

    def publish_host(self) -> None:
        begin_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        read = self._host.read()
        if read is not None:
            self._files.write_host(begin_ns, time.time_ns(), mono_ns, *read)

    def publish_phases(self) -> None:
        phases = phases_of(sys.modules.get(_PHASES))
        if phases != self._phases:
            self._files.write_phases(phases)
            self._phases = phases

    def look_for_end(self) -> None:
        """The program may be killed while it leaves: an exception that the interpreter has printed
        is published before the program has ended."""
        if is_new := interrupted():
            self._interrupted_at = time.monotonic()
        raised = id(getattr(sys, "last_value", None))
        if is_new or (raised != self._raised and not hasattr(sys, "ps1")):  # not interactive
            self._raised = raised
            self._identity["printed"] = self._record(time.time_ns())
            self.publish_identity()

    def _record(self, at_ns: int) -> dict[str, Any]:
        since_s = time.monotonic() - self._interrupted_at
        return _exit_record(at_ns, is_interrupted=since_s <= INTERRUPT_S)

    def close(self) -> None:
        """At exit: write how the program ended, and accept no more requests."""
        at_ns = time.time_ns()
        try:
            if self._identity["socket"] is not None:
                os.unlink(os.path.join(self._directory, self._identity["socket"]))
                self._identity.update(socket=None, socket_error="the program has ended")
                time.sleep(PAUSE_S)
            self.look_for_end()
            record = self._record(at_ns)
            if record["kind"] == "clean" and "interrupted" not in record:
                self.follow_threads(is_over=True)
                record = self._identity["raised"] or record
            self._identity["exit"] = record
            self.publish_memory()
            self.publish_phases()
            self.publish_identity()
            self.publish_counters()
        except Exception as error:
            _complain("exit record", error)


def _register_handlers(ext: Any) -> None:
    """A forked child has the handlers of its parent, and torch before 2.10 takes none: the rank
    does without them."""
    for name, handler in ((IGNORE_CAPTURES, ignore_captures), (TRACE, trace)):
        with contextlib.suppress(Exception):
            # torch frees it after the interpreter's end, so it must not die then.
            _functions().Py_IncRef(ctypes.py_object(handler))
            ext._register_handler(name, handler)


def ignore_captures(_: Any, response: Any) -> None:
    """Runs on a thread of the worker server. See the module."""
    response.set_content(exempt_from_captures().encode("ascii"), "text/plain")
    response.set_status(200)


def trace(request: Any, response: Any) -> None:
    """Runs on a thread of the worker server. See the module."""
    with contextlib.suppress(Exception):
        status, text = 503, short_of_bytes()
        if not text:
            try:
                dump = sys.modules[_C10D_CODE]._dump_fr_trace_json
                text = _text(dump(backend=request.get_param("backend")))
                status = 200
            except Exception as error:
                status, text = 500, _printable(f"{type(error).__name__}: {error}")
        response.set_content(text, "application/json")
        response.set_status(status)


def exempt_from_captures() -> str:
    """The calling thread may query events while the program captures a CUDA graph."""
    global _exchange_mode
    answer = "no CUDA in this process"
    with contextlib.suppress(Exception):
        cuda = sys.modules.get("torch.cuda")
        if _exchange_mode is None and cuda is not None and cuda.is_initialized():
            driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            _exchange_mode = driver.cuThreadExchangeStreamCaptureMode
        if _exchange_mode is not None:
            mode = ctypes.c_int(_CAPTURES_OF_THIS_THREAD)
            error = _exchange_mode(ctypes.byref(mode))
            answer = f"error {error}" if error else "done"
    return answer


def _start_server(ext: Any, path: str) -> Any:
    """A path that is too long for a socket is replaced by a path through a descriptor of its
    directory."""
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return ext._WorkerServer(path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        return ext._WorkerServer(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)


def _use_torch(places: Iterable[tuple[dict[str, Any], CodeType]]) -> bool:
    """Whether one of these functions, with its globals, is of a module outside torch that has
    imported some of torch, or imports it itself. What torch runs in threads that it starts, such as
    those of a data loader, trains nothing."""
    for names, code in places:
        are_modules = map(operator.is_, map(type, names.values()), itertools.repeat(ModuleType))
        modules = list(itertools.compress(names.values(), are_modules))
        origins = [*(str(one.__dict__.get("__name__")) for one in modules), *code.co_names]
        if str(names.get("__name__")).partition(".")[0] != "torch" and any(
            origin.partition(".")[0] == "torch" for origin in origins
        ):
            return True
    return False


def raised_in_thread() -> dict[str, Any] | None:
    """The record of the exception that the program keeps and that has left the code that uses
    torch, in a thread that `threading` began; None without one.

    One call of C code finds all exceptions by the types of all objects, so that this thread
    destroys no object of the program; for a million objects it takes 130 ms.
    """
    once = itertools.islice(iter(gc.get_objects, None), 1)
    objects, same = itertools.tee(itertools.chain.from_iterable(once))
    are_errors = map(issubclass, map(type, same), itertools.repeat(BaseException))
    record = None
    for error in list(itertools.compress(objects, are_errors)):
        traceback = _traceback_of(error)
        raised = [one.tb_frame for one in _linked(traceback, "tb_next")]
        callers = [_place_of(one) for frame in raised[:1] for one in _linked(frame, "f_back")]
        names = [one.get("__name__") for one, _ in callers[-1:] if not _use_torch(callers)]
        if names == ["threading"] and _use_torch(map(_place_of, raised)):
            record = _exit_record(time.time_ns(), (type(error), error, traceback))
    return record


def _linked(one: Any, attribute: str) -> Iterator[Any]:
    while one is not None:
        yield one
        one = getattr(one, attribute)


def _exit_record(
    at_ns: int, error: tuple[Any, ...] = (), *, is_interrupted: bool = False
) -> dict[str, Any]:
    """The uncaught exception is `error` (type, value, traceback), else the one by which the process
    leaves (`_in_flight`), else the one that the interpreter printed last (`sys.last_type`). It
    never prints SystemExit: the agent gets the exit status from the kernel."""
    record: dict[str, Any] = {"kind": "clean", "detail": "", "at_ns": at_ns}
    if is_interrupted:
        record["interrupted"] = True
    last = ("last_type", "last_value", "last_traceback")
    raised, value, traceback = error or _leaves_by or [getattr(sys, name, None) for name in last]
    if raised is not None:
        with contextlib.suppress(Exception):
            if (own := _own(value)) is not value:
                raised, value, traceback = type(own), own, own.__traceback__
        detail = raised.__name__
        with contextlib.suppress(Exception):  # str() of a user's exception is a user's code
            message = str(value).strip()
            first = message.partition("\n")[0]
            detail += ": " + first if first else ""
            if _IN_A_WORKER in message:
                record["original"] = _printable(message[-MAX_ORIGINAL:], MAX_ORIGINAL)
        with contextlib.suppress(Exception):
            if _while_interrupted(value):
                record["interrupted"] = True
        frames = _frames(traceback)
        record.update(kind="exception", detail=_printable(detail), frames=frames)
    return record


def _own(error: Any) -> Any:
    """The exception during which a handler of SIGTERM raised `error`, if that is how it came."""
    handler = getattr(_signal.getsignal(_signal.SIGTERM), "__code__", None)
    for _ in range(MAX_FRAMES):
        cause, traceback = error.__context__, error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code is not handler:
            traceback = traceback.tb_next
        if handler is None or traceback is None or cause is None:
            break
        # It may have waited in an `except`, as in a loop that tries again.
        if traceback.tb_frame.f_back is getattr(cause.__traceback__, "tb_frame", None):
            break
        error = cause
    return error


def _while_interrupted(error: Any) -> bool:
    """Whether `error` was raised while a KeyboardInterrupt was handled: Ctrl-C during `torch.save`
    ends with a RuntimeError about an incomplete file."""
    for _ in range(MAX_FRAMES):
        error = error.__cause__ or error.__context__
        if error is None or isinstance(error, KeyboardInterrupt):
            break
    return isinstance(error, KeyboardInterrupt)


def _frames(traceback: Any) -> list[tuple[str, int, str]]:
    """File, line and function, innermost first. No source lines and no local variables are read."""
    places: deque[tuple[Any, int]] = deque(maxlen=MAX_FRAMES)
    for one in _linked(traceback, "tb_next"):
        places.appendleft((one.tb_frame.f_code, one.tb_lineno or 0))
    return [_place(code, line) for code, line in places]


def _place(code: CodeType, line: int | None) -> tuple[str, int, str]:
    return _printable(code.co_filename[-MAX_TEXT:]), line or 0, _printable(code.co_name)


def _printable(text: str, most: int = MAX_TEXT) -> str:
    """`text` for JSON: short, and without lone surrogates."""
    return text[:most].encode("utf-8", "backslashreplace").decode()[:most]


# -- names ----------------------------------------------------------------------------------


def job_of(environ: Mapping[str, str], init_method: str | None = None) -> str:
    """A name that all ranks of one job compute, and other jobs do not.

    In this order: the name that the user gave (`FRD_JOB`, torchrun's id); Slurm's name and number,
    of an array's task as squeue writes it;
    the name that `frd-agent exec` took from the command (`FRD_JOB_DEFAULT`, such as
    ``train-alice``) with the address where the ranks meet; that address alone.
    torchrun's id is "none" if the user gave none and, with --standalone, a random UUID.
    """
    if given := environ.get("FRD_JOB", "").strip():
        return given
    run_id = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    default = environ.get("FRD_JOB_DEFAULT", "").strip()
    slurm = environ.get("SLURM_JOB_ID", "").strip()
    is_random = _UUID.fullmatch(run_id) is not None
    if run_id not in ("", "none", slurm) and not (is_random and default):
        return run_id
    if slurm:
        name = environ.get("SLURM_JOB_NAME", "").strip()
        array = environ.get("SLURM_ARRAY_JOB_ID", "").strip()
        number = f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '').strip()}" if array else slurm
        return f"{name}-{number}" if name else number
    address, port = _meeting_place(environ, init_method)
    if default and (is_random or port == _TORCHRUN_PORT):
        return f"{default}@{address}"  # the port is either random or always the same
    place = f"{address}:{port}" if port else address
    return f"{default}@{place}" if default else place


def _meeting_place(environ: Mapping[str, str], init_method: str | None) -> tuple[str, str]:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    scheme, _, place = (init_method or "env://").partition("://")
    if scheme == "tcp":
        address, _, port = place.partition("/")[0].partition("?")[0].rpartition(":")
    elif scheme != "env":
        address, port = "localhost", place
    if not address or address in ("localhost", "::1", "[::1]") or address.startswith("127."):
        address = socket.gethostname()
    return address, port


def run_of(environ: Mapping[str, str], init_method: str | None = None) -> str:
    """Address where the ranks meet: two running launches with one job name cannot share it."""
    place = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ}
    return job_of(place, init_method) if place or init_method else ""


def attempt_of(environ: Mapping[str, str]) -> int:
    """Requeues by Slurm, restarts by the launcher, and the runs that `frd-agent exec` has counted,
    all added.

    torchrun counts on each node the failures of that node, and the other nodes join its restart
    without counting it. So the count of a world of several nodes is ignored: its ranks would
    disagree. A restart then starts the same attempt again.
    """
    counts = ["FRD_RUN_NUMBER", "SLURM_RESTART_COUNT"]
    if _number(environ, 1, "GROUP_WORLD_SIZE") <= 1:
        counts.append("TORCHELASTIC_RESTART_COUNT")
    return _number(environ, sum(_number(environ, 0, name) for name in counts), "FRD_ATTEMPT")


def _number(environ: Mapping[str, str], default: int, *names: str) -> int:
    for name in names:
        given = environ.get(name, "").strip()
        if given.isdecimal():
            return int(given)
    return default


def ranks_here(environ: Mapping[str, str], world_size: int) -> int:
    """About how many ranks start on this node together: by torchrun, mpirun or srun, which writes
    ``8(x2)``; else as many as a large node has."""
    for name in _RANKS_HERE:
        given = environ.get(name, "").partition("(")[0].partition(",")[0]
        if given.isdecimal() and int(given):
            return int(given)
    return min(world_size, 8)


def boot_id() -> str:
    return _content("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
