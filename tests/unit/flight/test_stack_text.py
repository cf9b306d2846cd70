"""The user's frames of the main thread, from what faulthandler and py-spy print."""

from __future__ import annotations

import pytest

from frd.flight.stacks.places import activity_of
from frd.flight.stacks.text import processes

SITE = "/usr/lib/python3.11/site-packages"

FAULTHANDLER = f"""\
Current thread 0x00007f79d63226c0 (most recent call first):
  <no Python frame>

Thread 0x00007f79d7fff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/u/train.py", line 12 in prefetch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f79fbc4db80 (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "{SITE}/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/u/model.py", line 88 in load_batch
  File "/home/u/train.py", line 14 in <module>
"""

PY_SPY = f"""\
# dump_traceback: no answer within 2 s: the GIL may be held
Process 11595: /usr/bin/python train.py (fast)
Python v3.11.7 (/usr/bin/python3.11)

Thread 11627 (idle): "prefetch"
    prefetch (/home/u/train.py:12)
Thread 11595 (active+gil): "MainThread"
    wait (/usr/lib/python3.11/threading.py:327)
    barrier ({SITE}/torch/distributed/distributed_c10d.py:5349)
    load_batch (/home/u/model.py:88)
    <module> (/home/u/train.py:14)
Thread 0x7F3210 (idle)
    loop (/home/u/other.py:1)
"""

OWN = ("model.py:88 in load_batch", "train.py:14 in <module>")


RUNNER = f"{SITE}/ray/train/v2/_internal/execution/worker_group/thread_runner.py"
RAY_TRAIN = f"""\
Thread 0x00007f79d7fff6c0 (most recent call first):
  File "/home/u/model.py", line 88 in load_batch
  File "/home/u/train.py", line 14 in train
  File "{RUNNER}", line 39 in _run_target
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f79d7aff6c0 (most recent call first):
  File "{RUNNER}", line 73 in _monitor_target

Thread 0x00007f79fbc4db80 (most recent call first):
  File "{SITE}/ray/_private/worker.py", line 1069 in main_loop
  File "{SITE}/ray/_private/workers/default_worker.py", line 323 in <module>
# main thread: has not run since it had used 1234 ns
"""


CASES = {
    "faulthandler: the main thread is the last one listed": (FAULTHANDLER, OWN),
    "py-spy: the main thread is known by name, wherever it is, under notes of what failed": (
        PY_SPY,
        OWN,
    ),
    "py-spy without names of threads: the main thread has the id of the process": (
        PY_SPY.replace(': "MainThread"', "").replace(': "prefetch"', ""),
        OWN,
    ),
    "Ray Train calls the program in another thread": (
        RAY_TRAIN,
        ("model.py:88 in load_batch", "train.py:14 in train"),
    ),
    "only library frames: they are shown": (
        f"""\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 5349 in barrier
  File "<frozen runpy>", line 88 in _run_code
""",
        ("distributed_c10d.py:5349 in barrier", "<frozen runpy>:88 in _run_code"),
    ),
    "a trainer that is an installed package: its frames and not torch's": (
        f"""\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/opt/pytorch/torch/nn/parallel/distributed.py", line 1 in forward
  File "{SITE}/megatron/training.py", line 31 in train_step
  File "{SITE}/torch/distributed/run.py", line 5 in main
""",
        ("training.py:31 in train_step",),
    ),
    "frames of libraries, of generated code and of frd's tap are left out": (
        """\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "/repo/agents/frd_agent/tap.py", line 9 in publish
  File "<eval_with_key>.3", line 4 in forward
  File "/opt/conda/lib/python3.12/multiprocessing/popen_fork.py", line 2 in wait
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "<string>", line 3 in main
  File "/home/u/torchtrain/my_torch/run.py", line ??? in <module>
""",
        ("<string>:3 in main", "run.py:??? in <module>"),
    ),
    "an empty text": ("", ()),
    "state of the kernel": (
        "== /proc/7/status\nName:\tpython (x:3)\nState:\tT (stopped)\n",
        (),
    ),
    "other threads only": (
        f"{FAULTHANDLER}Thread 0x1 (most recent call first):\n  <no Python frame>\n",
        (),
    ),
    "names in any script stay, control characters do not": (
        "Thread 0x00007f79fbc4db80 (most recent call first):\n"
        '  File "/home/\u00fc/tr\x1b[31m, line 1 in "x", line 3 in f.py", line 8 in l\u00e4dt\r\n'
        '  File "/home/u/\\xff.py", line 9 in <locals>.g\n',
        ('tr?[31m, line 1 in "x", line 3 in f.py:8 in l\u00e4dt', "\\xff.py:9 in <locals>.g"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_user_frames(case: str) -> None:
    """The user's frames of the main thread, innermost first."""
    text, frames = CASES[case]
    assert activity_of(text).stack == frames


def test_endless_stack() -> None:
    """A recursion of thousands of frames shows its innermost ones."""
    lines = [f'  File "/u/a.py", line {n} in deep' for n in range(1, 5000)]
    frames = activity_of("\n".join(["Thread 0x1 (most recent call first):", *lines])).stack
    assert len(frames) == 64
    assert frames[0] == "a.py:1 in deep"


def test_a_main_thread_that_rests_says_nothing_of_another_thread() -> None:
    """The processor time is that of the main thread; Ray Train's program is in another one."""
    (process,) = processes(RAY_TRAIN)
    assert process.ran_ns is None
