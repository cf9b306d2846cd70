"""Answers to the service's requests: a rank's dump, its identity, its stacks, its wait, and what
NCCL knows of its communicators.

Every part is answered, with data or with the reason why there is none, within the time that the
service gives. For a rank that no longer answers, its last known dump is used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias

import msgspec

from frd.errors import DumpError, FrdError
from frd.flight.decode import parse_answer
from frd.flight.entry import Dump
from frd.flight.stacks.text import ADVICE
from frd.flight.write import write_pickle
from frd.forms import utc_text
from frd.model import Certainty, GroupInfo, NodeNs, WaitKind, WaitsFor
from frd.wire.messages import PART_BYTES, Part, Request, ResponsePart
from frd.wire.waits import WaitReport, encode_report
from frd_agent.addresses.read import no_log
from frd_agent.inspection.inspector import Inspector
from frd_agent.nccl_ras.client import RasClient
from frd_agent.ranks.dump_files import DumpFile, last_op_ns
from frd_agent.ranks.file_rank import FileRank
from frd_agent.ranks.forming.forming_rank import FormingRank
from frd_agent.ranks.process import HIDDEN
from frd_agent.ranks.rank import Rank
from frd_agent.ranks.stacks.children import Meter, child_stacks
from frd_agent.recorder.recorders import KeptDump

_MARGIN: Final = 0.8
"""The share of the request's time that the rank may use; the rest is for the answer's way back."""
_DUMP_S: Final = 5.0
_HANDLER_S: Final = 2.0

Send: TypeAlias = Callable[[ResponsePart], Awaitable[None]]
AnyRank: TypeAlias = Rank | FormingRank | FileRank
"""By what the agent knows it from. Each answers for itself, or says why it cannot."""
_Log: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _RankDump:
    dump: Dump
    source: str
    taken_at_ns: NodeNs


@dataclass(frozen=True, slots=True)
class _Answer:
    """One whole part; see `ResponsePart`."""

    part: Part
    data: bytes = b""
    source: str = ""
    error: str = ""


async def answer(
    rank: AnyRank,
    request: Request,
    send: Send,
    files: Sequence[DumpFile],
    *,
    others: Collection[int] | None = None,
) -> None:
    """Send all parts that `request` asks of one rank. `files`: its dump files, newest first.

    `others` are the pids of all ranks, if the stacks of this one's child processes are wanted, and
    the end of its log: a rank is never a worker of another rank.
    """

    async def deliver(finding: Awaitable[Sequence[_Answer]]) -> None:
        for one in await finding:
            await _deliver(rank, request, one, send)

    budget_s = request.timeout_s * _MARGIN
    wanted = []
    if request.dump:
        both = _dump_and_identity(rank, files, min(budget_s, _DUMP_S), others is not None)
        wanted.append(deliver(both))
    if request.stacks:
        wanted.append(deliver(_stacks(rank, others, budget_s)))
    await asyncio.gather(*wanted)


async def _deliver(rank: AnyRank, request: Request, one: _Answer, send: Send) -> None:
    size = len(one.data)
    for start in range(0, max(size, 1), PART_BYTES):
        piece, last = one.data[start : start + PART_BYTES], start + PART_BYTES >= size
        whole = request.request_id, rank.number, one.part
        await send(ResponsePart(*whole, piece, last, one.source, one.error))


async def _dump_and_identity(
    rank: AnyRank, files: Sequence[DumpFile], budget_s: float, wants_log: bool
) -> list[_Answer]:
    log = asyncio.create_task(_log(rank, wants_log))  # which has a limit
    try:
        found = await _find(rank, files, budget_s)
        data = write_pickle(found.dump, _membership(rank, found.dump))
    except (FrdError, TimeoutError) as error:
        why = str(error) or f"no answer within {budget_s:g} s"
        return [
            _Answer(Part.DUMP, error=why),
            _Answer(Part.IDENTITY, _identity(rank, None, why, await log)),
        ]
    return [
        _Answer(Part.DUMP, data, found.source),
        _Answer(Part.IDENTITY, _identity(rank, found, "", await log), found.source),
    ]


def _absence(rank: AnyRank) -> str:
    """Why nothing is read of its process."""
    return "it runs without a tap" if rank.process is None else "the process is gone"


async def _log(rank: AnyRank, is_wanted: bool) -> _Log:
    """Only of suspects: to start a process holds the agent up, while it should see who ends."""
    if rank.log is None:
        return no_log(_absence(rank))
    return await rank.log.json() if is_wanted else no_log("it was no suspect at that time")


async def _find(rank: AnyRank, files: Sequence[DumpFile], budget_s: float) -> _RankDump:
    """The best available dump: from the rank now, else its last one, else a file.

    Raises:
        FrdError: there is no dump; the message says why the rank did not answer.
    """
    try:
        async with asyncio.timeout(budget_s):
            return _chosen(await rank.ask(budget_s), "")
    except (FrdError, TimeoutError) as error:
        refusal = error
    if kept := rank.kept():
        newest = max(dump.taken_at_ns for dump in kept)
        last = _chosen(kept, f", kept from {utc_text(newest)}")
        if not files or _age(files[0]) <= (last_op_ns(last.dump), newest):
            return last
    if files:
        file = files[0]
        taken_at_ns = max(min(file.written_at_ns, time.time_ns()), file.last_op_ns)
        return _RankDump(file.dump, f"file {file.path.name}", NodeNs(taken_at_ns))
    raise refusal


def _age(file: DumpFile) -> tuple[NodeNs, NodeNs]:
    """What sorts dumps by age: the time of writing decides only between dumps of the same ops."""
    return file.last_op_ns, file.written_at_ns


def _chosen(kept: Sequence[KeptDump], suffix: str) -> _RankDump:
    """The rank's dump, from one recorder: one with open entries, NCCL's before Gloo's."""
    found = [
        _RankDump(
            parse_answer(dump.data, source=dump.source), dump.source + suffix, dump.taken_at_ns
        )
        for dump in kept
    ]
    if not found:
        raise DumpError("no recorder gave a dump")
    return max(
        reversed(found),
        key=lambda kept: (
            any(not entry.retired for entry in kept.dump.entries),
            bool(kept.dump.entries),
        ),
    )


async def _stacks(rank: AnyRank, others: Collection[int] | None, budget_s: float) -> list[_Answer]:
    if rank.process is None or rank.is_gone:
        return [_Answer(Part.STACK, error=_absence(rank))]
    deadline = asyncio.get_running_loop().time() + budget_s
    handler_s = min(budget_s / 2, _HANDLER_S)
    pid = rank.process.readable
    meter = None if pid is None else Meter(pid)
    below = asyncio.create_task(child_stacks(rank.process, budget_s, others))
    try:
        async with asyncio.timeout_at(deadline):
            stack = await rank.read_stack(handler_s, budget_s - handler_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.wait({below})
                if meter is not None:
                    await meter.settled()
        children = below.result() if below.done() else "# child processes: no answer in time\n"
    except TimeoutError:
        return [_Answer(Part.STACK, error="no stack in time")]
    finally:
        below.cancel()
    # A stack of torch's own is read without the process; what it uses is not.
    usage = meter.lines() if meter is not None else f"{ADVICE}{HIDDEN}\n"
    text = f"{usage}{stack.text}".rstrip("\n") + f"\n{children}"
    return [_Answer(Part.STACK, text.encode("utf-8", "backslashreplace"), stack.source)]


async def answer_waits(
    rank: AnyRank,
    request: Request,
    send: Send,
    inspector: Inspector,
    ranks: Iterable[Rank | FormingRank],
) -> None:
    """Send what is known now of the wait of one rank, and keep inspecting it. `ranks`: all ranks of
    the node."""
    await _deliver(rank, request, _waits(rank, inspector, ranks), send)


def _waits(rank: AnyRank, inspector: Inspector, ranks: Iterable[Rank | FormingRank]) -> _Answer:
    if rank.process is None or rank.is_gone:
        return _Answer(Part.WAITS, error=_absence(rank))
    if rank.process.readable is None:
        hidden = WaitsFor(WaitKind.NOT_ALLOWED, Certainty.UNKNOWN, says=HIDDEN)
        return _Answer(Part.WAITS, encode_report(WaitReport(hidden)), "proc")
    rank_of = {
        one.process.pid: one.info.rank if one.key == rank.key else None
        for one in ranks
        if one.process.pid is not None and not one.is_gone
    }
    report = inspector.ask(rank.process, rank_of)
    return _Answer(Part.WAITS, encode_report(report), "proc")


async def answer_ras(rank: AnyRank, request: Request, send: Send, ras: RasClient | None) -> None:
    """Send what NCCL's RAS service says of the communicators of one rank. `ras`: None if it may not
    be asked."""
    await _deliver(rank, request, await _ras(rank, ras, request.timeout_s * _MARGIN), send)


async def _ras(rank: AnyRank, ras: RasClient | None, budget_s: float) -> _Answer:
    if ras is None:
        return _Answer(Part.RAS, error="NCCL RAS: the agent may not ask it: ras = false")
    if rank.process is None:
        return _Answer(Part.RAS, error=_absence(rank))
    pid = None if rank.is_gone else rank.process.readable
    try:
        return _Answer(Part.RAS, await ras.ask(pid, rank.info.pid, budget_s), "ras")
    except FrdError as error:
        return _Answer(Part.RAS, error=str(error))


def _membership(rank: AnyRank, dump: Dump) -> Mapping[str, tuple[str, Sequence[int]]]:
    """Members of every group in the dump; only this rank if the members are not known."""
    groups = {entry.group_name: entry.group_desc for entry in dump.entries}
    return {
        name: (group.desc, group.ranks)
        for name, desc in groups.items()
        if name not in dump.groups or name in rank.naming.groups
        for group in [rank.naming.groups.get(name, GroupInfo(name, desc, (rank.info.rank,)))]
    }


def _identity(rank: AnyRank, found: _RankDump | None, error: str, log: _Log) -> bytes:
    """``rank_<rank>.json`` of a dump folder; the service adds the clock's offset."""
    document = {
        "job": rank.key.job,
        "attempt": rank.key.attempt,
        **asdict(rank.info),
        "source": found.source if found else "",
        "taken_at_ns": found.taken_at_ns if found else None,
        "node_time_ns": time.time_ns(),
        "log": log,
        "warnings": list(found.dump.warnings) if found else [error],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
