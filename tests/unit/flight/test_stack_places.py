"""Known places, in stack texts recorded from real ranks of torch 2.13 (`tests/stacks.py`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frd.flight.stacks.places import MAX_WORKERS, activity_of
from frd.model import Activity

RECORDED = Path(__file__).parents[2] / "golden" / "stacks"

SAID = {
    "save": "saving a checkpoint",
    "save_sharded": "saving a checkpoint",
    "load": "loading a checkpoint",
    "in_process": "loading a batch",
    "shutdown": "the program has ended, a non-daemon thread keeps it alive: "
    "places.py:LINE prefetch",
    "compile": "compiling",
    "backward": "in the backward pass",
    "subprocess": "waits for a subprocess",
    "debugger": "in the debugger",
    "barrier": "in a barrier in evaluate()",
    "all_reduce": "in all_reduce in step()",
    "new_group": "in new_group",
    "recv": "in recv in exchange()",
    "monitored_barrier": "in a barrier in check()",
    "loader": "waits for its DataLoader worker pid PID: places.py:LINE __getitem__",
    "pinned": "waits for its DataLoader worker pid PID: places.py:LINE __getitem__",
    "wait": "",  # of Work.wait, which is C++, there is no frame
    "spin": "",
}


def recorded(place: str, means: str) -> str:
    return (RECORDED / f"{place}.{means}.txt").read_text("utf-8")


@pytest.mark.parametrize("means", ["handler", "py-spy"])
@pytest.mark.parametrize("place", SAID)
def test_what_a_rank_is_doing(place: str, means: str) -> None:
    """Each place is known by the text of torch's handler and by that of py-spy."""
    said = activity_of(recorded(place, means)).doing
    assert re.sub(r"pid \d+", "pid PID", re.sub(r":\d+ ", ":LINE ", said)) == SAID[place]


def test_collecting_garbage() -> None:
    """Only the interpreter itself reports that."""
    assert activity_of(recorded("collect", "handler")).doing == "collecting garbage"
    assert activity_of(recorded("collect", "py-spy")).doing == ""


def test_workers_of_a_rank() -> None:
    """The one that is stuck comes first, with its own frames only: what a forked process has of its
    parent's stack is not its own. The others wait for work."""
    activity = activity_of(recorded("loader", "handler"))
    stuck, *idle = activity.workers
    assert [re.sub(r"\d+", "N", line) for line in stuck.stack] == ["places.py:N in __getitem__"]
    assert (stuck.name, stuck.doing) == ("pt_data_worker", "loading a batch")
    assert f"worker pid {stuck.pid}:" in activity.doing
    assert stuck.usage == "idle: used no processor time"
    assert [one.doing for one in idle] == ["waits for work"] * 2
    assert not any("in main" in line for one in idle for line in one.stack)


def sections(*children: str) -> str:
    return recorded("loader", "handler").partition("== child")[0] + "".join(children)


def worker(pid: int, place: str) -> str:
    return f"""\
== child {pid} pt_data_worker
Thread {pid} (idle): "MainThread"
    Set.__getitem__ (/home/u/{place})
    fetch (/v/site-packages/torch/utils/data/_utils/fetch.py:54)
    _worker_loop (/v/site-packages/torch/utils/data/_utils/worker.py:374)
    BaseProcess._bootstrap (/usr/lib/python3.11/multiprocessing/process.py:314)
    main (/home/u/train.py:9)
"""


IDLE = """\
== child 70 pt_data_worker
Thread 70 (idle): "MainThread"
    Queue.get (/usr/lib/python3.11/multiprocessing/queues.py:113)
    _worker_loop (/v/site-packages/torch/utils/data/_utils/worker.py:334)
    BaseProcess._bootstrap (/usr/lib/python3.11/multiprocessing/process.py:314)
    main (/home/u/train.py:9)
"""
UNREAD = """\
== child 71 pt_data_worker
# py-spy: not installed: pip install py-spy
== /proc/71/status
Name:\tpt_data_worker
State:\tD (disk sleep)
== /proc/71/wchan
nfs_wait_bit_killable
"""


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ([], "waits for its DataLoader workers"),
        ([IDLE], "waits for its DataLoader, all 1 workers of which wait for work"),
        (
            [IDLE, UNREAD],
            "waits for its DataLoader worker pid 71: "
            "in the kernel: D (disk sleep), nfs_wait_bit_killable",
        ),
        ([UNREAD.replace("D (disk sleep)", "S (sleeping)")], "waits for its DataLoader workers"),
        (
            [worker(5, "a.py:2"), worker(6, "a.py:2"), IDLE],
            "waits for its DataLoader workers pids 5, 6: a.py:2 __getitem__",
        ),
        (
            [worker(5, "a.py:2"), worker(6, "a.py:3")],
            "waits for its DataLoader workers (pid 5: a.py:2 __getitem__, "
            "pid 6: a.py:3 __getitem__)",
        ),
        (
            [worker(pid, "a.py:2") for pid in range(1, 6)],
            "waits for its DataLoader workers pids 1, 2, 3 and 2 more: a.py:2 __getitem__",
        ),
    ],
)
def test_the_worker_that_is_waited_for(children: list[str], said: str) -> None:
    """Those that work on a batch, or that the kernel holds; never one that waits for work."""
    assert activity_of(sections(*children)).doing == said


def test_no_more_workers_than_fit() -> None:
    """A rank with hundreds of children has a bounded activity."""
    text = sections(*(worker(pid, "a.py:2") for pid in range(1, 300)))
    assert len(activity_of(text).workers) == MAX_WORKERS


def test_a_rank_that_computes() -> None:
    """It is in no known place, but it uses its processor; one that waits does not."""
    text = recorded("spin", "handler")
    busy = activity_of("# usage: busy: uses 1.0 cores\n" + text)
    assert (busy.doing, busy.usage) == ("busy", "busy: uses 1.0 cores")
    assert activity_of("# usage: idle: used no processor time\n" + text).doing == ""


def test_what_to_do_about_a_missing_stack() -> None:
    """The agent's advice is a note of its own."""
    advice = "install py-spy in the agent's environment to see its Python stack"
    assert activity_of(f"# advice: {advice}\n== /proc/1/status\n") == Activity(note=advice)
    assert activity_of("") == Activity()


PLACES = """\
Thread 0x1 (most recent call first):
  File "{file}", line 7 in {function}
  File "/home/u/train.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("file", "function", "said"),
    [
        (
            "torch/cuda/__init__.py",
            "synchronize",
            "waits for its device in synchronize",
        ),
        ("torch/distributed/_functional_collectives.py", "wait_tensor", "in Work.wait"),
        ("torch/utils/file_baton.py", "wait", "waits for another process that builds an "),
        ("torch/distributed/distributed_c10d.py", "destroy_process_group", "in destroy_process_"),
        ("megatron/training/checkpointing.py", "save_checkpoint", "saving a checkpoint"),
        ("trainer/loop.py", "save", ""),
    ],
)
def test_places_that_need_more_than_a_processor(file: str, function: str, said: str) -> None:
    """By the names of torch's own files and functions."""
    doing = activity_of(PLACES.format(file=f"/v/site-packages/{file}", function=function)).doing
    assert doing.startswith(said)
    assert bool(doing) == bool(said)


def test_the_thread_that_a_rank_waits_for() -> None:
    """A join of the only thread that runs the user's code."""
    text = """\
Thread 0x2 (most recent call first):
  File "/home/u/writer.py", line 4 in flush
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1119 in join
  File "/home/u/train.py", line 9 in main
"""
    assert activity_of(text).doing == "waits for a thread to end: writer.py:4 flush"
