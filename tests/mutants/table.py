"""The mistakes. None of them is without effect: each changes something that a user can see."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from tests.mutants.edits import Edit, Instead, Say, Swap, Without
from tests.mutants.mistakes import observe_by_clock, store_after_reading_again


@dataclass(frozen=True, slots=True)
class Mutant:
    """`tests` are folders of tests/, or files without `test_` and `.py`. One test must fail."""

    package: str
    function: str
    edit: Edit
    tests: str
    why: str

    @property
    def name(self) -> str:
        return f"{self.package.removeprefix('frd.')}.{self.function}"


_MATCHING: Final = "frd.engine.matching"
_HANGS: Final = "frd.engine.hangs"
_STRAGGLERS: Final = "frd.engine.stragglers"
_CLOCKS: Final = "frd.engine.clocks"
_CAUSE: Final = (
    "unit/engine/hangs unit/engine/losses unit/engine/findings unit/engine/uncertain_order"
)
_LATE: Final = "unit/engine/matching unit/engine/stragglers"
_MEMORY: Final = "unit/engine/memory"
_NATS: Final = "frd.cluster.nats"

MUTANTS: Final = (
    # -- matching ------------------------------------------------------------------------------
    Mutant(_MATCHING, "balance", Swap(ast.Sub, ast.Add), "unit/engine/matching",
           "what an all_to_all outputs is added to its input instead of compared with it"),
    Mutant(_MATCHING, "is_synchronizing", Swap("any", "all"),
           "unit/engine/matching unit/engine/hangs",
           "a coalesced series is only as strict as its laxest part"),
    Mutant(_MATCHING, "_arrive", Swap("maximum", "minimum"),
           "unit/engine/matching property/straggler",
           "the second to last arrival is accumulated as a minimum"),
    Mutant(_MATCHING, "_span", Swap(ast.Add, ast.Sub, 1),
           "unit/engine/matching unit/engine/attempt",
           "a window ends before its last collective"),
    Mutant(_MATCHING, "OpenCollectives.take", Without("clear_rows"),
           "unit/engine/matching unit/engine/attempt",
           "a reused slot starts with the counts of the collective before"),
    Mutant(_MATCHING, "GroupClocks.of", Swap("maximum", "minimum"),
           f"{_LATE} unit/service/agent_clocks",
           "arrivals in a group are compared with the uncertainty of its best clock"),
    Mutant(_MATCHING, "charges", Swap("maximum", "minimum"), _LATE,
           "a rank is charged for time in which the previous collective still ran"),
    Mutant(_MATCHING, "contradicts", Swap(ast.USub, ast.UAdd),
           "unit/engine/matching unit/service/agent_clocks",
           "clocks contradict each other while they are within their uncertainty"),
    Mutant(_MATCHING, "united", Swap(ast.LtE, ast.Lt), "unit/engine/matching unit/engine/attempt",
           "one wait that two agents report counts twice"),
    # -- state ---------------------------------------------------------------------------------
    Mutant("frd.engine.state", "_earlier", Swap("minimum", "maximum"), "unit/engine/attempt",
           "the last report of a watermark dates it, not the first"),
    # -- hangs ---------------------------------------------------------------------------------
    Mutant(_HANGS, "_attend", Swap(ast.Add, ast.Sub), "unit/engine/hangs",
           "a rank that completed the seq before is not inside this one"),
    Mutant(_HANGS, "Waits._first", Swap("argmin", "argmax"), _CAUSE,
           "the last rank to join is named as the first"),
    Mutant(_HANGS, "absence", Swap(ast.Add, ast.Sub), _CAUSE,
           "clock uncertainty speaks against a rank, not for it"),
    Mutant(_HANGS, "_is_left", Swap(ast.Or, ast.And), _CAUSE,
           "in an op that synchronizes only a single rank counts as left behind"),
    Mutant(_HANGS, "_ripe_at", Swap("last_since", "first_since"), _CAUSE,
           "an op that a rank has only just joined is judged by its oldest member"),
    Mutant("frd.engine.findings", "has_majority", Swap(ast.Gt, ast.GtE), _CAUSE,
           "one half of the members is a majority over the other half"),
    Mutant(_HANGS, "_left_inside", Swap(ast.Gt, ast.GtE), _CAUSE,
           "one agent alone convicts a rank of another agent"),
    Mutant(_HANGS, "_gone", Swap("any", "all"), _CAUSE,
           "a process that is known to be stopped is reported as merely silent"),
    Mutant("frd.engine.findings", "_is_ripe", Swap("min", "max"),
           "unit/engine/findings unit/engine/attempt_lives",
           "a verdict that grows is never confirmed"),
    # -- evidence ------------------------------------------------------------------------------
    Mutant("frd.engine.evidence", "Answers.of_stack", Swap("max", "min"), "unit/engine/evidence",
           "a late answer says that a wait ended before it began"),
    Mutant("frd.engine.evidence", "Answers.is_of_present_process", Swap(ast.GtE, ast.Lt),
           "unit/engine/evidence", "only what the last process of a rank answered counts"),
    # -- stragglers ----------------------------------------------------------------------------
    Mutant(_STRAGGLERS, "_late", Swap("all", "any"), _LATE,
           "a node is compared with the easiest of its rivals only"),
    Mutant(_STRAGGLERS, "_excuses", Swap(ast.NotEq, ast.Eq), _LATE,
           "a rank is excused by those that waited for it elsewhere"),
    # -- clocks --------------------------------------------------------------------------------
    Mutant(_CLOCKS, "OffsetBounds.__init__", Swap(ast.Sub, ast.Add), "unit/engine/clocks",
           "the first bound on an offset has the wrong sign"),
    Mutant(_CLOCKS, "OffsetBounds.narrow", Swap(ast.LtE, ast.GtE), "unit/engine/clocks",
           "of two bounds the looser one is kept"),
    Mutant(_CLOCKS, "OffsetInterval._narrow_drift", Swap("min", "max"), "unit/engine/clocks",
           "of all upper bounds of a drift the loosest one is kept"),
    Mutant(_CLOCKS, "OffsetInterval.narrow", Swap(ast.Or, ast.And), "unit/engine/clocks",
           "a drift that has jumped is claimed to be what it was"),
    # -- memory --------------------------------------------------------------------------------
    Mutant("frd.engine.memory", "Levels._older", Swap(ast.Sub, ast.Add), _MEMORY,
           "the newest samples show what is usual, too"),
    Mutant("frd.engine.memory", "Trend.add", Swap("minimum", "maximum"), _MEMORY,
           "a leak is measured at the peaks of a series, not at its floor"),
    Mutant("frd.engine.memory", "Decisions._decide", Swap("min", "max"), _MEMORY,
           "all ranks of a chain of overlapping onsets are suspects"),
    # -- what carries it -----------------------------------------------------------------------
    Mutant("frd.flight.decode", "_new_group", Swap("sorted", "list"),
           "unit/flight property/flight",
           "members of a group are in the order of a set"),
    Mutant("frd.wire.columns", "check_below", Swap(ast.GtE, ast.Gt), "unit/wire",
           "the first index that was not declared is accepted"),
    Mutant("frd_agent.uplink.outbox", "Outbox.ack", Swap(ast.LtE, ast.Lt), "unit/agent/uplink",
           "the last acknowledged row is sent again, or a row too many is forgotten"),
    Mutant("frd_agent.memory.samples", "rewind", Swap("reversed", "list"), "unit/agent/memory",
           "samples that are sent again go backwards"),
    # -- cluster -------------------------------------------------------------------------------
    Mutant("frd.cluster.ownership", "Ownership._newer", Swap(ast.Gt, ast.Lt),
           "property/lease",
           "an owner does not learn that another replica has claimed its cell since"),
    Mutant("frd.cluster.ownership", "Ownership.may_claim", Swap(ast.GtE, ast.Lt),
           "property/lease",
           "a claim that its owner has not reported yet is robbed"),
    Mutant("frd.cluster.heartbeats", "HeartbeatLease._run", Swap("_put", "_beat"),
           "property/lease",
           "heartbeats in quick succession count others as dead that had no time for theirs"),
    Mutant(_NATS, "JetStreamCells._store", Say("Nats-Expected-Last-Subject-Sequence", "Frd-Last"),
           "contract/cells", "an owner does not say which claim it writes for"),
    Mutant(_NATS, "JetStreamCells._store",
           Say("Nats-Expected-Last-Subject-Sequence-Subject", "Frd-Subject"),
           "contract/cells", "the sequence of a claim is expected of another subject"),
    Mutant(_NATS, "JetStreamCells._put", Swap(ast.Eq, ast.NotEq, 1), "contract/cells",
           "an owner writes while an earlier write of it is still on the way, and loses the newer"),
    Mutant(_NATS, "JetStreamCells._store", Instead(store_after_reading_again), "contract/cells",
           "an owner that was superseded goes on with the number of the new claim"),
    Mutant(_NATS, "Connection.open", Without("_spawn"), "contract/faults",
           "a client that has ended for good is never replaced"),
    Mutant("frd.service.ingest", "Stream.take_outgoing", Swap(ast.And, ast.Or),
           "unit/service/cells/owner",
           "a process that has paused acknowledges rows of a cell that another one has now"),
    Mutant("frd.service.cells", "Cell._is_sure", Swap(ast.And, ast.Or),
           "unit/service/cells/owner", "a cell that was lost is acknowledged"),
    Mutant("frd.service.cells", "SharedArchive.open", Swap("lasts", "goes_on"),
           "unit/service/cells/archive", "a new owner does not go on with open findings"),
    Mutant("frd.service.findings", "SharedKeeper._put", Without("refused"),
           "unit/service/cells/archive",
           "a superseded owner shows its cell until its lease learns of it"),
    Mutant("frd.cluster", "Ownership._observe", Instead(observe_by_clock), "property/lease",
           "living replicas lose their cells because the registry was not there"),
    Mutant("frd.cluster", "HeartbeatLease._write", Swap(ast.GtE, ast.Lt), "property/lease",
           "a replica is sure again before it has read its claims"),
    Mutant("frd.cluster", "HeartbeatLease._write", Swap("SURE_S", "_START_S"), "property/lease",
           "a replica that was stopped is sure as soon as it continues"),
    Mutant("frd.cluster", "HeartbeatLease._claim", Swap(ast.NotEq, ast.Is), "property/lease",
           "a replica takes a cell whose owner has written a heartbeat meanwhile"),
    Mutant("frd.cluster", "HeartbeatLease._is_idle", Swap("_IDLE_S", "_START_S"), "property/lease",
           "the heartbeats of a service that hangs go on"),
)  # fmt: skip
