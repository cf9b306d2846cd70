"""What successive looks of a tap at one rank show together."""

from __future__ import annotations

import pytest

from frd.flight.stacks import waits
from frd.flight.stacks.text import ProcessStack
from frd.flight.stacks.waits import Call
from frd.model import DEVICE, IDLE, NATIVE, POLL, REST, NodeNs, NodeRawNs, Stage
from frd_agent.ranks.forming import forming_rank
from frd_agent.ranks.forming.forming_rank import Looks, StageReport, is_news
from frd_agent.ranks.tap_files import ExitFrame

S = 1_000_000_000
MS = 1_000_000
SITE = "/v/lib/python3.11/site-packages"
LIB = "/usr/lib/python3.11"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
OWN = ("/job/train.py step", "/job/train.py <module>")


class Rank:
    """A rank whose tap looks once a second."""

    def __init__(self) -> None:
        self.looks = Looks(NodeRawNs)
        self.at_s = 100
        self.waits_for_thread = False
        """What the kernel shows."""

    def look(self, *frames: str, ran_ns: int | None = 7_000, op: str = "") -> Stage | None:
        """Frames as ``FILE NAME``, in line 8."""
        self.at_s += 1
        at_ns = NodeNs(self.at_s * S)
        places = tuple(ExitFrame(file, 8, name) for file, name in map(str.split, frames))
        report = StageReport(
            schema=1,
            token="a",
            pid=7,
            start_ticks=0,
            op=op,
            since_ns=NodeNs(101 * S),
            as_of_ns=at_ns,
            frames=places,
            ran_ns=ran_ns,
        )
        self.looks.take(report, lambda: self.waits_for_thread)
        return self.looks.stage


def times(*stages: Stage | None) -> list[tuple[str, int, int, bool]]:
    return [(s.op, s.since_ns // S, s.as_of_ns // S, s.rests) for s in stages if s is not None]


def test_one_wait() -> None:
    """Three looks show a rank in recv, which uses no processor time; then it receives again."""
    rank, call = Rank(), (f"{C10D} recv", *OWN)
    seen = [rank.look(*call), rank.look(*call), rank.look(*call), rank.look(*call, ran_ns=7_001)]
    assert times(*seen) == [
        *(("recv", 101, 101, False), ("recv", 101, 102, True), ("recv", 101, 103, True)),
        ("recv", 104, 104, False),
    ]
    assert seen[0] is not None
    assert seen[0].where == "train.py:8 in step"


def test_a_rest() -> None:
    """A read leaves no frame: it is known from the second look on. In the next line it is over."""
    rank = Rank()
    seen = [rank.look(*OWN, ran_ns=ran_ns) for ran_ns in (5, 7, 7, 7)]
    assert times(*seen, rank.look("/job/train.py other", ran_ns=7)) == [
        *(("", 101, 101, False), ("", 102, 102, False)),
        *((REST, 102, 103, True), (REST, 102, 104, True), ("", 105, 105, False)),
    ]


def test_posted_work() -> None:
    """`work.wait()` leaves no frame; the kernel shows that the rank waits for another thread. Below
    code of the standard library that is another wait."""
    rank, queue = Rank(), (f"{LIB}/threading.py wait", *OWN)
    rank.waits_for_thread = True
    assert times(rank.look(*OWN), rank.look(*OWN))[1] == (NATIVE, 101, 102, True)
    elsewhere = [rank.look(*queue, ran_ns=9_000) for _ in range(2)]
    assert times(*elsewhere)[1] == (REST, 103, 104, True)


@pytest.mark.parametrize(
    ("frames", "used_ns", "op", "lasts"),
    [
        ((f"{SITE}/torch/cuda/__init__.py synchronize", *OWN), S, DEVICE, True),
        ((f"{SITE}/filelock/_api.py acquire", *OWN), 40 * MS, POLL, True),
        ((f"{SITE}/filelock/_api.py acquire", *OWN), 60 * MS, POLL, False),
        ((f"{LIB}/socket.py accept", *OWN), 200 * MS, IDLE, True),
        ((f"{C10D} monitored_barrier", *OWN), MS // 2, "monitored_barrier", True),
        ((f"{C10D} monitored_barrier", *OWN), 2 * MS, "monitored_barrier", False),
        ((f"{C10D} recv", *OWN), MS // 2, "recv", False),
    ],
)
def test_what_a_wait_may_use(frames: tuple[str, ...], used_ns: int, op: str, lasts: bool) -> None:
    """A device all of a core, a poll a twentieth, a wait for the store some wake-ups."""
    rank = Rank()
    rank.look(*frames)
    seen = rank.look(*frames, ran_ns=7_000 + used_ns)
    assert times(seen) == [(op, 101 if lasts else 102, 102, False)]


@pytest.mark.parametrize(("frames", "ran_ns"), [(OWN, None), ((f"{C10D} all_reduce", *OWN), 7_000)])
def test_what_proves_no_rest(frames: tuple[str, ...], ran_ns: int | None) -> None:
    """Where the kernel counts no processor time, and in a collective: its entry says more."""
    rank = Rank()
    rank.look(*frames, ran_ns=ran_ns)
    assert times(rank.look(*frames, ran_ns=ran_ns)) == [("", 102, 102, False)]


def test_an_initialization() -> None:
    """The tap knows since when it lasts, also if this agent has just started."""
    rank = Rank()
    rank.at_s = 160
    call = (f"{C10D} _store_based_barrier", f"{C10D} new_group", *OWN)
    seen = rank.look(*call, op="new_group"), rank.look(*call, op="new_group")
    assert times(*seen) == [("new_group", 101, 161, False), ("new_group", 101, 162, False)]
    assert times(rank.look(*OWN), rank.look(*OWN))[1] == (REST, 163, 164, True)


def test_a_program_that_has_ended() -> None:
    """Where its main thread is says nothing of the program; a stack that the tap has cut does."""
    rank = Rank()
    assert rank.look(f"{LIB}/threading.py _shutdown") is None
    assert rank.look(*[f"{SITE}/torch/nn/modules/module.py forward"] * 64) is not None
    assert rank.look() is None


def test_hostile_names() -> None:
    """What ends in terminals is short and printable."""
    seen = Rank().look("/job/" + "x" * 500 + "\x1b[2J.py step")
    assert seen is not None
    assert len(seen.where) == 200
    seen = Rank().look("/job/\x1b[2J.py step")
    assert seen is not None
    assert seen.where == "?[2J.py:8 in step"


def test_frames_that_are_the_same_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a node rest for hours, and every second each is looked at."""
    read = []

    def place(stack: ProcessStack) -> Call | None:
        read.append(stack)
        return waits.place_of(stack)

    monkeypatch.setattr(forming_rank, "place_of", place)
    rank, call = Rank(), (f"{C10D} recv", *OWN)
    for frames, ran_ns in ((OWN, 7), (OWN, 9), (OWN, 9), (call, 9), (OWN, 9)):
        rank.look(*frames, ran_ns=ran_ns)
    assert len(read) == 3
    assert times(rank.look(*OWN, ran_ns=10)) == [("", 106, 106, False)]


def test_no_more_is_read_than_a_tap_writes() -> None:
    """Another program's file has 200 frames with long paths above that of the program; a tap would
    have cut it."""
    deep = [f"{'/torch/' * 500}{SITE}/torch/nn/modules/module.py forward"] * 200
    seen = Rank().look(*deep, *OWN)
    assert seen is not None
    assert seen.where == ""
    seen = Rank().look(*deep[:63], *OWN)
    assert seen is not None
    assert seen.where == "train.py:8 in step"


def test_a_stage_that_was_taken_already() -> None:
    """The same report twice is one look."""
    rank = Rank()
    first = rank.look(*OWN)
    report = rank.looks._report
    assert report is not None
    rank.looks.take(report, lambda: True)
    assert rank.looks.stage is first


def test_news() -> None:
    """That a rank is seen at work is no news, and neither is its line."""
    work, later = (Stage("", NodeRawNs(at), NodeRawNs(at), f"a.py:{at} in f") for at in (1, 2))
    rest = Stage(REST, NodeRawNs(1), NodeRawNs(2), "a.py:1 in f", rests=True)
    assert not is_news(None, work)
    assert not is_news(work, later)
    assert is_news(work, rest)
    assert is_news(rest, None)
    assert is_news(work, None)
