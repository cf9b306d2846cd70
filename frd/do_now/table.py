"""What to check and what usually helps, by what a suspect waits for, by reason and by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from frd.model import Kind, Reason, WaitKind

Case = WaitKind | Reason | Kind


@dataclass(frozen=True, slots=True)
class Row:
    """A step with names in braces where the finding has values."""

    text: str
    command: str = ""
    place: str = "here"
    """``here``: any shell; ``pod``: on the node, or in the pod; ``node``: not in the pod, where
    pids are others."""


LOGIN: Final = Row("Log in to the node.", "ssh {node}")
READ: Final = Row("Read the evidence.", "frd findings {id}")
_SLURM: Final = Row("See what Slurm says of the job.", "scontrol show job {slurm_job}")
_STACK: Final = Row(
    "Read the stacks of all threads of the process.", "py-spy dump --pid {pid}", "node"
)
_RESTART: Final = Row("Repair what it waits for; if it still waits then, restart the job.")
_FILE: Final = Row("Does the file answer? Use a shell that you can lose.", "ls -l {path}", "pod")
_MOUNT: Final = Row("Does the file system answer, and has it space left?", "df -h {mount}", "pod")
_HOLDER: Final = Row("Look at the process that holds the lock.", "ps -f -p {holder}", "node")
_LOG: Final = Row("Read the end of its log.", "tail -n 50 {log}", "pod")
_KERNEL: Final = Row(
    "Read the kernel's log: out of memory, errors of a GPU (Xid).",
    "journalctl --dmesg --since {since}",
    "node",
)
_STATE: Final = Row(
    "Is the process stopped, or in a call that cannot be interrupted (D)?",
    "ps -o pid,stat,wchan:32,args -p {pid}",
    "node",
)
_GPU: Final = Row("Look for errors of the GPU.", "nvidia-smi -q -d ECC,PERFORMANCE", "pod")
_LEAVE: Final = Row("Take the node out of the job, and restart it on others.")
_FINDING: Final = Row("Compare the lines of the ranks.", "frd findings {id}")
_STATUS: Final = Row("See where each rank is.", "frd status --job {job}")
_AGENTS: Final = Row("Which agents are missing or late, and why?", "frd status")
_MEMORY: Final = Row("See which rank uses the memory.", "frd status --job {job} --memory")
_SAVE: Final = Row("Save a checkpoint while there is time; then restart without the cause.")

RUNBOOKS: Final[Mapping[Kind, str]] = {
    Kind.STALL: "FrdCollectiveStalled",
    Kind.ORDER: "FrdCollectiveStalled",
    Kind.MISMATCH: "FrdCollectiveMismatch",
    Kind.RANK_LOST: "FrdRankLost",
    Kind.OOM: "FrdMemoryFirstCause",
    Kind.MEMORY_SPIKE: "FrdMemoryFirstCause",
    Kind.STRAGGLER: "FrdStragglerPersistent",
    Kind.TELEMETRY_GAP: "FrdTelemetryGap",
    Kind.CLOCK_UNSYNCHRONIZED: "FrdClockUnsynchronized",
    Kind.STANDSTILL: "FrdStandstill",
}
"""The alert about findings of a kind, and the file of docs/runbooks, without its ending."""
TABLE: Final[Mapping[Case, tuple[Row, ...]]] = {
    WaitKind.FILE_READ: (_FILE, _MOUNT),
    WaitKind.FILE_OPEN: (_FILE, _MOUNT),
    WaitKind.PAGE_FAULT: (_FILE, _MOUNT),
    WaitKind.FILE_WRITE: (_MOUNT, _FILE),
    WaitKind.FILE_SYNC: (_MOUNT, _FILE),
    WaitKind.LOCK_FILE: (
        _HOLDER,
        Row("End or repair the holder; a lock lives as long as any child that inherited it."),
    ),
    WaitKind.LOCK_SHARED: (_HOLDER, _STACK),
    WaitKind.LOCK_INNER: (
        _STACK,
        Row("Look for a deadlock of two threads, or a wait for another rank in `work.wait()`."),
    ),
    WaitKind.PIPE_WORKER: (_STACK, _RESTART),
    WaitKind.CHILD: (_STACK, _RESTART),
    WaitKind.SOCKET: (
        Row("Does the other host answer?", "nc -vz -w 5 {host} {port}", "pod"),
        Row("See the connections of the process.", "ss -tnp", "pod"),
    ),
    WaitKind.SLEEP: (
        _STACK,
        Row("It waits on purpose: read the line; it is often a loop that tries again."),
    ),
    WaitKind.ON_CPU: (_STACK, Row("It computes. If the line stays the same, restart the job.")),
    WaitKind.STOPPED: (
        Row("Let it go on, unless a debugger holds it.", "kill -CONT {pid}", "node"),
        Row("If its container is paused, resume that (`docker unpause`)."),
    ),
    WaitKind.ZOMBIE: (_STATE, Row("It has ended: restart the job.")),
    WaitKind.NOT_ALLOWED: (
        Row("Give the agent the right that the finding names.", "frd doctor", "node"),
        _STACK,
    ),
    Reason.CPU_STUCK: (_STACK, _RESTART),
    Reason.EXITED: (_SLURM, _LOG, _KERNEL, Row("Repair the cause, and restart the job.")),
    Reason.UNREACHABLE: (_STATE, _SLURM, _AGENTS),
    Reason.IN_COLLECTIVE_ALONE: (_GPU, _LEAVE),
    Reason.DEVICE_STUCK: (_GPU, _STACK),
    Reason.MISMATCH: (
        _FINDING,
        Row("Stop the job: results since then are wrong. Repair the program."),
    ),
    Reason.ORDER: (
        _FINDING,
        Row("Let all ranks enter the groups in one order; then restart the job."),
    ),
    Reason.NETWORK_OR_DEVICE: (
        Row("Check links, switches and NCCL's logs of the nodes of the group."),
        Row("Keep what each rank has recorded.", "frd dump --finding {id} -o {id}"),
        _STATUS,
    ),
    Reason.LATE: (
        Row(
            "Compare clocks and limits with those of another node.",
            "nvidia-smi -q -d PERFORMANCE,CLOCK",
            "pod",
        ),
        Row("See what the program does while the others wait.", "py-spy dump --pid {pid}", "node"),
    ),
    Reason.MEMORY: (_MEMORY, _SAVE),
    Kind.RANK_LOST: (
        Row("Read the logs of the ranks: the earliest error is the cause.", "frd findings {id}"),
    ),
    Kind.STANDSTILL: (
        _STATUS,
        Row("If what they wait for is slow but works, do nothing; else repair it."),
    ),
    Kind.TELEMETRY_GAP: (
        _AGENTS,
        Row("Start agents that are gone; read the log of one that cannot connect."),
    ),
    Kind.CLOCK_UNSYNCHRONIZED: (
        _AGENTS,
        Row("Check the time synchronization of the nodes.", "chronyc tracking", "node"),
    ),
}
"""What to check and what usually helps, the most useful first. `LOGIN` comes before the first
command of a node, and `READ` comes first if there is no command."""
