"""runbooks: writes what to do into docs/runbooks, from the table that findings have it from.

Run as `python -m scripts.runbooks` in the root of the repository after a change of `frd.do_now`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from frd.do_now import in_general
from frd.do_now.table import LOGIN, RUNBOOKS, TABLE, Case
from frd.model import Kind, Reason, WaitKind

FOLDER: Final = Path(__file__).parents[1] / "docs/runbooks"
BEGIN: Final = "[//]: # (written by python -m scripts.runbooks)"
END: Final = "[//]: # (the end of what is written)"
CASES: Final[dict[str, Sequence[Case]]] = {
    RUNBOOKS[Kind.STALL]: (
        *(one for one in TABLE if isinstance(one, WaitKind)),
        *(Reason.CPU_STUCK, Reason.EXITED, Reason.UNREACHABLE, Reason.IN_COLLECTIVE_ALONE),
        *(Reason.DEVICE_STUCK, Reason.ORDER, Reason.NETWORK_OR_DEVICE),
    ),
    RUNBOOKS[Kind.MISMATCH]: (Reason.MISMATCH,),
    RUNBOOKS[Kind.RANK_LOST]: (Reason.EXITED, Reason.UNREACHABLE, Kind.RANK_LOST),
    RUNBOOKS[Kind.OOM]: (Reason.MEMORY,),
    RUNBOOKS[Kind.STRAGGLER]: (Reason.LATE,),
    RUNBOOKS[Kind.STANDSTILL]: (Kind.STANDSTILL,),
    RUNBOOKS[Kind.TELEMETRY_GAP]: (Kind.TELEMETRY_GAP,),
    RUNBOOKS[Kind.CLOCK_UNSYNCHRONIZED]: (Kind.CLOCK_UNSYNCHRONIZED,),
}
"""Cases by runbook, in the order of the text."""


def written(name: str, text: str) -> str:
    """A runbook with its steps."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{_steps(CASES[name])}\n\n{END}{after}"


def _steps(cases: Sequence[Case]) -> str:
    alike: dict[str, list[str]] = {}
    for case in cases:
        alike.setdefault(_line(case), []).append(f"`{case}`")
    return "\n".join(
        textwrap.fill(
            f"- {', '.join(names)}: {line}",
            118,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line, names in alike.items()
    )


def _line(case: Case) -> str:
    """``Read the end of its log: `tail -n 50 LOG`. ..``, without the way to the node."""
    return " ".join(
        f"{step.text.removesuffix('.')}{':' * step.text.endswith('.')} `{step.command}`."
        if step.args
        else step.text
        for step in in_general(case)
        if step.text != LOGIN.text
    )


def main() -> None:
    for name in CASES:
        path = FOLDER / f"{name}.md"
        path.write_text(written(name, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
