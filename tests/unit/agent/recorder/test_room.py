"""Whether an agent may connect to a rank, by what a scripted /proc shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from frd_agent.ranks import process
from frd_agent.recorder import room
from frd_agent.recorder.room import Room

PID = 77


@pytest.fixture
def proc(proc_files: Path) -> Path:
    """Of a machine with plenty of everything, and of one rank."""
    write(proc_files, handles=(900, 1_000_000), available_kb=8_000_000)
    rank = proc_files / str(PID)
    (rank / "fd").mkdir(parents=True)
    (rank / "limits").write_text("Limit  Soft\nMax open files            1024     4096     files\n")
    return proc_files


def write(proc: Path, handles: tuple[int, int], available_kb: int) -> None:
    (proc / "sys/fs").mkdir(parents=True, exist_ok=True)
    (proc / "sys/fs/file-nr").write_text(f"{handles[0]}\t0\t{handles[1]}\n")
    text = f"MemTotal:       64000000 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n"
    (proc / "meminfo").write_text(text)


def shortage() -> str:
    return Room(lambda: PID).shortage()


def test_plenty(proc: Path) -> None:
    """Nothing is short; nor is anything known of a rank that is not seen."""
    assert shortage() == ""
    assert Room(lambda: None).shortage() == ""


@pytest.mark.parametrize(
    ("used", "most", "short"),
    [
        (900_000, 1_000_000, False),
        (990_001, 1_000_000, True),
        (900, 1_000, False),
        (901, 1_000, True),
    ],
)
def test_file_handles(proc: Path, used: int, most: int, short: bool) -> None:
    """Ten thousand must be free, of few a tenth."""
    write(proc, (used, most), 8_000_000)
    assert shortage().startswith("the node is short of file handles: ") is short


def test_memory_of_the_machine(proc: Path) -> None:
    """256 MiB must be available."""
    write(proc, (1, 1_000_000), 200_000)
    assert shortage() == "the node is short of memory: 195 of 62500 MiB are available"


def test_descriptors_of_the_rank(proc: Path) -> None:
    """An accepted connection must not take its last one."""
    (proc / str(PID) / "limits").write_text("Max open files            20     4096     files\n")
    for number in range(5):
        (proc / str(PID) / "fd" / str(number)).touch()
    assert shortage() == "it is short of file descriptors: 15 of 20 are free"


@pytest.mark.usefixtures("proc_files")
def test_nothing_that_can_be_read() -> None:
    """A sandbox without these files: the agent connects."""
    assert shortage() == ""


def test_the_listener_of_a_socket_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a connection that is closed immediately would be accepted."""
    absent = str(tmp_path / "absent.sock")
    assert process.listener(absent) is process.Listener.NONE
    monkeypatch.setattr(room, "of_node", lambda: "the node is short")
    assert process.listener(absent) is process.Listener.ELSEWHERE
