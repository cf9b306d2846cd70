"""The user's frames of the main thread, from what faulthandler and py-spy print."""

from __future__ import annotations

from frd.flight.stacks.text import user_frames

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


def test_faulthandler() -> None:
    """The main thread is the last one listed; its own frames come innermost first."""
    assert user_frames(FAULTHANDLER) == OWN


def test_py_spy() -> None:
    """The main thread is known by name, wherever it stands, under notes of what failed before."""
    assert user_frames(PY_SPY) == OWN


def test_py_spy_without_names() -> None:
    """Where py-spy could not read thread names, the main thread has the id of the process."""
    assert user_frames(PY_SPY.replace(': "MainThread"', "").replace(': "prefetch"', "")) == OWN


def test_only_machinery_is_left() -> None:
    """A rank that stands in torch with no frame of its own still shows where."""
    text = f"""\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 5349 in barrier
  File "<frozen runpy>", line 88 in _run_code
"""
    assert user_frames(text) == (
        "distributed_c10d.py:5349 in barrier",
        "<frozen runpy>:88 in _run_code",
    )


def test_installed_trainer_before_torch() -> None:
    """A training loop that is itself an installed package says more than torch's frames."""
    text = f"""\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/opt/pytorch/torch/nn/parallel/distributed.py", line 1 in forward
  File "{SITE}/megatron/training.py", line 31 in train_step
  File "{SITE}/torch/distributed/run.py", line 5 in main
"""
    assert user_frames(text) == ("training.py:31 in train_step",)


def test_foreign_frames() -> None:
    """Frames of the library, of generated code and of frd's tap are passed over."""
    text = """\
Thread 0x00007f79fbc4db80 (most recent call first):
  File "/repo/agents/frd_agent/tap.py", line 9 in publish
  File "<eval_with_key>.3", line 4 in forward
  File "/opt/conda/lib/python3.12/multiprocessing/popen_fork.py", line 2 in wait
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "<string>", line 3 in main
  File "/home/u/torchtrain/my_torch/run.py", line ??? in <module>
"""
    assert user_frames(text) == ("<string>:3 in main", "run.py:??? in <module>")


def test_no_stack() -> None:
    """A text without Python frames of the main thread has no frames to show."""
    assert user_frames("") == ()
    assert user_frames("== /proc/7/status\nName:\tpython (x:3)\nState:\tT (stopped)\n") == ()
    gone = "Thread 0x1 (most recent call first):\n  <no Python frame>\n"
    assert user_frames(FAULTHANDLER + gone) == ()


def test_odd_names() -> None:
    """Names in any script stay, control characters do not reach a terminal."""
    text = (
        "Thread 0x00007f79fbc4db80 (most recent call first):\n"
        '  File "/home/\u00fc/tr\x1b[31m, line 1 in "x", line 3 in f.py", line 8 in l\u00e4dt\r\n'
        '  File "/home/u/\\xff.py", line 9 in <locals>.g\n'
    )
    assert user_frames(text) == (
        'tr?[31m, line 1 in "x", line 3 in f.py:8 in l\u00e4dt',
        "\\xff.py:9 in <locals>.g",
    )


def test_endless_stack() -> None:
    """A recursion of thousands of frames shows its innermost ones."""
    lines = [f'  File "/u/a.py", line {n} in deep' for n in range(1, 5000)]
    frames = user_frames("\n".join(["Thread 0x1 (most recent call first):", *lines]))
    assert len(frames) == 64
    assert frames[0] == "a.py:1 in deep"
