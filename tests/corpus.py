"""A corpus of hanging jobs: programs of parallel ranks, run to a standstill with faults injected.

A seed gives a job (tensor, pipeline, data and expert parallel groups), up to two faults, and damage
to its dumps: rings that overran, missing files, clocks that are off. `run` plays the job with the
rules of a device queue: an op begins when all earlier ops of its rank are over, and completes when
all members have begun it. What can be known from the dumps is decided from the state of the
simulation, by the ops that a fault holds up; never by the engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from frd.flight.entry import Status
from frd.flight.trace import Trace
from frd.model import RankInfo
from tests.world.traces import Folder, Row

RANKS_A_NODE = 8
ROUND_MS = 25.0

Key: TypeAlias = tuple[str, int, int, int]
"""Group, number, and of a P2P pair both ends as ranks of the group, else -1."""


class Fault(Enum):
    CPU_STUCK = "never enqueues the op"
    ALONE = "its device never ends the op that its peers end"
    DEVICE = "its device never starts the op"
    SIZE = "passes another size"
    OP = "calls another op"
    ORDER = "takes two ops in the wrong order"
    NETWORK = "all join the op and no rank completes it"


@dataclass(frozen=True, slots=True)
class Op:
    """One step of a rank's program: a collective, or one end of a P2P pair."""

    group: str
    name: str
    seq: int
    """P2P: the number of the pair on its channel."""
    src: int = -1
    dst: int = -1

    @property
    def is_p2p(self) -> bool:
        return self.src >= 0

    @property
    def key(self) -> Key:
        return self.group, self.seq, self.src, self.dst


@dataclass(frozen=True, slots=True)
class Injected:
    fault: Fault
    rank: int
    at: int
    """Step of the rank's program."""


@dataclass
class Step:
    op: Op
    created: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    wrong: Fault | None = None


@dataclass
class Job:
    seed: int
    world: int
    groups: dict[str, tuple[str, tuple[int, ...]]]
    programs: dict[int, list[Op]]
    faults: list[Injected]
    ahead: int
    """How many ops a rank enqueues before the first of them is over."""
    timing: bool = False
    missing: frozenset[int] = frozenset()
    ring: int = 10_000
    active_only: bool = False
    reports_completion: bool = True
    skew: dict[int, float] = field(default_factory=dict)
    """Clock error by node, in ms."""
    identities: bool = True
    offsets_known: bool = False
    backend: str = "nccl"
    uneven: bool = False
    """Gathers of data parallel groups are coalesced series of one part a member."""
    reset: bool = False
    """The recorders were reset on the way, at a place of each rank's own."""
    steps: dict[int, list[Step]] = field(default_factory=dict)


_KINDS = (
    *(Fault.CPU_STUCK, Fault.CPU_STUCK, Fault.ALONE, Fault.SIZE, Fault.OP, Fault.ORDER),
    Fault.NETWORK,
)
_KINDS_WITH_TIMING = (Fault.DEVICE, Fault.DEVICE)

# -- making jobs -----------------------------------------------------------------------------


def job(seed: int, world: int | None = None) -> Job:
    dice = random.Random(seed)
    if world is None:
        world = dice.choice([4, 8, 8, 8, 16, 16, 16, 24, 32])
    tp = dice.choice([n for n in (2, 4, 8) if world % n == 0 and n <= world])
    rest = world // tp
    pp = dice.choice([n for n in (1, 2, 4) if rest % n == 0])
    backend = "nccl" if pp > 1 or dice.random() < 0.85 else "gloo"
    groups = _groups(world, tp, pp)
    if dice.random() < 0.25:
        groups = {f"{dice.getrandbits(64):016x}": group for group in groups.values()}
    programs = _programs(dice, world, tp, pp, groups)
    made = Job(seed, world, groups, programs, [], ahead=dice.choice([1, 1, 2, 4]), backend=backend)
    made.timing = backend == "nccl" and dice.random() < 0.4
    if backend == "gloo":
        made.ahead = 1
    kinds = _KINDS + _KINDS_WITH_TIMING * made.timing
    wanted = dice.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 2]) if seed % 50 else 0
    for _ in range(wanted):
        injected = _inject(dice, made, dice.choice(kinds))
        if injected is not None and all(f.rank != injected.rank for f in made.faults):
            made.faults.append(injected)
    _spoil(dice, made)
    return made


def _groups(world: int, tp: int, pp: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Rank = (stage, replica, tensor), tensor fastest; expert groups are two tensor groups wide."""
    dp = world // (tp * pp)
    groups: list[tuple[str, tuple[int, ...]]] = [("default_pg", tuple(range(world)))]
    groups += (("TENSOR", tuple(range(first, first + tp))) for first in range(0, world, tp))
    stage = tp * dp
    if dp > 1:
        for at in range(pp):
            ranks = range(at * stage, (at + 1) * stage)
            groups += (("DATA", tuple(ranks[t::tp])) for t in range(tp))
        width = 2 * tp
        for at in range(pp):
            ranks = range(at * stage, (at + 1) * stage)
            groups += (("EXPERT", tuple(ranks[w : w + width])) for w in range(0, stage, width))
    if pp > 1:
        groups += (("PIPELINE", tuple(range(r, world, stage))) for r in range(stage))
    return {str(at): group for at, group in enumerate(groups)}


def _programs(
    dice: random.Random,
    world: int,
    tp: int,
    pp: int,
    groups: dict[str, tuple[str, tuple[int, ...]]],
) -> dict[int, list[Op]]:
    group_of: dict[int, dict[str, str]] = {rank: {} for rank in range(world)}
    for name, (desc, ranks) in groups.items():
        for rank in ranks:
            group_of[rank][desc] = name
    script = [step for _ in range(dice.choice([1, 2, 3])) for step in _iteration(dice, pp)]
    stage = world // pp
    programs: dict[int, list[Op]] = {}
    for rank in range(world):
        seqs: dict[str, int] = {}
        sent: dict[tuple[int, int], int] = {}
        at, program = rank // stage, []
        for desc, name in script:
            if (group := group_of[rank].get(desc)) is None:
                continue
            if name in ("forward", "backward"):
                way = 1 if name == "forward" else -1
                for src, dst in ((at - way, at), (at, at + way)):
                    if 0 <= src < pp and 0 <= dst < pp:
                        number = sent[src, dst] = sent.get((src, dst), 0) + 1
                        op = "recv" if dst == at else "send"
                        program.append(Op(group, op, number, src, dst))
                        if dst == at:
                            program.append(_next(seqs, group_of[rank]["TENSOR"], "all_reduce"))
                continue
            program.append(_next(seqs, group, name))
        programs[rank] = program
    return programs


def _iteration(dice: random.Random, pp: int) -> Iterator[tuple[str, str]]:
    for _ in range(dice.choice([1, 2, 3])):
        yield "TENSOR", "_all_gather_base"
        if dice.random() < 0.5:
            yield "EXPERT", "all_to_all"
        yield "TENSOR", "_reduce_scatter_base"
        if pp > 1:
            yield "PIPELINE", "forward"
    if pp > 1:
        yield "PIPELINE", "backward"
    yield "TENSOR", dice.choice(["all_reduce", "broadcast"])
    yield "DATA", "_reduce_scatter_base"
    if dice.random() < 0.6:
        yield "default_pg", "all_reduce"
    yield "DATA", "_all_gather_base"


def _next(seqs: dict[str, int], group: str, name: str) -> Op:
    seqs[group] = seqs.get(group, 0) + 1
    return Op(group, name, seqs[group])


SYNCHRONIZING = frozenset({"all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all"})


def _inject(dice: random.Random, made: Job, fault: Fault) -> Injected | None:
    rank = dice.randrange(made.world)
    program = made.programs[rank]

    def fits(at: int) -> bool:
        op = program[at]
        size = len(made.groups[op.group][1])
        match fault:
            case Fault.CPU_STUCK:
                return True
            case Fault.ALONE | Fault.DEVICE:
                return not op.is_p2p and size > 1 and op.name in SYNCHRONIZING
            case Fault.SIZE:
                return not op.is_p2p and size > 2 and op.name != "all_to_all"
            case Fault.OP:
                return not op.is_p2p and size > 2
            case Fault.ORDER:
                return at + 1 < len(program) and _can_swap(made, op, program[at + 1])
            case Fault.NETWORK:
                return not op.is_p2p and size > 1

    places = [at for at in range(len(program)) if fits(at)]
    return Injected(fault, rank, dice.choice(places)) if places else None


def _can_swap(made: Job, one: Op, other: Op) -> bool:
    """Both are collectives of two groups that another rank has in common."""
    if one.is_p2p or other.is_p2p or one.group == other.group:
        return False
    common = set(made.groups[one.group][1]) & set(made.groups[other.group][1])
    return len(common) > 1 and {one.name, other.name} <= SYNCHRONIZING


def _spoil(dice: random.Random, made: Job) -> None:
    """Damage the dumps."""
    if dice.random() < 0.25:
        lost = dice.randint(1, max(1, made.world // 8))
        made.missing = frozenset(dice.sample(range(made.world), lost))
    if dice.random() < 0.4:
        made.ring = dice.randint(6, 30)
    elif dice.random() < 0.3 and made.backend == "nccl":
        made.active_only = True
    made.uneven = made.backend == "nccl" and dice.random() < 0.3
    made.reset = not made.active_only and dice.random() < 0.1
    made.identities = dice.random() < 0.5
    made.reports_completion = made.backend == "nccl" and dice.random() < 0.8
    if dice.random() < 0.5:
        nodes = range(-(-made.world // RANKS_A_NODE))
        made.skew = {node: dice.uniform(-3_000, 3_000) for node in nodes}
        made.offsets_known = dice.random() < 0.4


# -- running them ----------------------------------------------------------------------------


def run(made: Job) -> None:
    """Play until nothing changes."""
    play = _Play(made)
    while play.round():
        pass
    made.steps = play.steps


class _Play:
    """In every round every rank enqueues, begins and completes what it can."""

    def __init__(self, made: Job) -> None:
        self._made = made
        self._dice = random.Random(-1 - made.seed)
        self._fault = {injected.rank: injected for injected in made.faults}
        self._programs = {rank: list(program) for rank, program in made.programs.items()}
        for injected in made.faults:
            if injected.fault is Fault.ORDER:
                program = self._programs[injected.rank]
                program[injected.at : injected.at + 2] = reversed(
                    program[injected.at : injected.at + 2]
                )
        self._dead = {
            _op_of(made, injected).key
            for injected in made.faults
            if injected.fault is Fault.NETWORK
        }
        self._over = dict.fromkeys(range(made.world), 0)
        self._began: dict[Key, list[tuple[int, Step]]] = {}
        self._now = 0.0
        self.steps: dict[int, list[Step]] = {rank: [] for rank in range(made.world)}

    def round(self) -> bool:
        """True if any op was enqueued, begun or completed."""
        self._now += ROUND_MS
        moved = [self._enqueue(rank) | self._begin(rank) for rank in range(self._made.world)]
        return any([*moved, *[self._complete(key) for key in list(self._began)]])

    def _enqueue(self, rank: int) -> bool:
        steps, fault = self.steps[rank], self._fault.get(rank)
        at, program = len(steps), self._programs[rank]
        if at >= len(program) or at - self._over[rank] >= self._made.ahead:
            return False
        step = Step(program[at], created=self._now + self._dice.random() * 0.5)
        if fault is not None and fault.at == at:
            if fault.fault is Fault.CPU_STUCK:
                return False
            if fault.fault in (Fault.SIZE, Fault.OP):
                step.wrong = fault.fault
                self._dead.add(step.op.key)
        steps.append(step)
        return True

    def _begin(self, rank: int) -> bool:
        at, fault = self._over[rank], self._fault.get(rank)
        if at >= len(self.steps[rank]) or (step := self.steps[rank][at]).began:
            return False
        if fault is not None and fault.fault is Fault.DEVICE and at == fault.at:
            return False
        step.began = self._now + 0.5 + self._dice.random() * 0.2
        self._began.setdefault(step.op.key, []).append((rank, step))
        return True

    def _complete(self, key: Key) -> bool:
        joined = self._began[key]
        size = 2 if key[2] >= 0 else len(self._made.groups[key[0]][1])
        if len(joined) < size or key in self._dead:
            return False
        for rank, step in joined:
            fault = self._fault.get(rank)
            alone = fault is not None and fault.fault is Fault.ALONE
            if not (alone and fault is not None and self._over[rank] == fault.at):
                step.ended = self._now + 0.8 + self._dice.random() * 0.2
                self._over[rank] += 1
        del self._began[key]
        return True


# -- what can be known -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truth:
    """`named`: ranks that must be named. `tolerated`: ranks that may be named."""

    named: frozenset[int]
    tolerated: frozenset[int]
    decidable: bool
    stuck: bool
    came: tuple[Injected, ...]
    """Faults that took effect; they held up the others."""


def truth(made: Job) -> Truth:
    heads = {rank: _head(made, rank) for rank in range(made.world)}
    dumped = {r for r in heads if r not in made.missing}
    evidence = [(injected, *_evidence(made, injected, heads, dumped)) for injected in made.faults]
    came = [(injected, ranks, seen) for injected, ranks, has_come, seen in evidence if has_come]
    named = {rank for _, ranks, seen in came if seen for rank in ranks}
    tolerated = {rank for _, ranks, _ in came for rank in ranks}
    clear = all(seen for _, _, seen in came)
    wrong = [injected for injected, _, _ in came if injected.fault in (Fault.SIZE, Fault.OP)]
    if len(came) > 1:
        # An op that another fault holds up too is no first cause; of mismatches, the first one of
        # each group explains all that it holds up.
        clear &= all(injected.fault is not Fault.NETWORK for injected, _, _ in came)
        named -= {r for injected, ranks, _ in came if injected.fault is Fault.ORDER for r in ranks}
        named |= {
            r for injected, ranks, _ in came if injected.fault is not Fault.ORDER for r in ranks
        }
    if wrong:
        first: dict[str, int] = {}
        ops = [(injected, _op_of(made, injected)) for injected in wrong]
        for _, op in ops:
            first[op.group] = min(op.seq, first.get(op.group, op.seq))
        foremost = [injected for injected, op in ops if op.seq == first[op.group]]
        named = {injected.rank for injected in foremost}
        for injected in foremost:
            members = set(made.groups[_op_of(made, injected).group][1])
            if 2 * len(members & dumped - named) <= len(members & dumped):
                clear = False  # no majority: all of them are named
                tolerated |= members
    if not next(iter(made.groups)).isdecimal() and (made.active_only or made.ring < 100):
        clear = False  # the newest counters may belong to an unknown group
    return Truth(
        frozenset(named),
        frozenset(tolerated),
        clear,
        stuck=any(h is not None for h in heads.values()),
        came=tuple(injected for injected, _, _ in came),
    )


def _op_of(made: Job, one: Injected) -> Op:
    return made.programs[one.rank][one.at]


def _head(made: Job, rank: int) -> Step | None:
    return next((step for step in made.steps[rank] if not step.ended), None)


def _evidence(
    made: Job, injected: Injected, heads: dict[int, Step | None], dumped: set[int]
) -> tuple[set[int], bool, bool]:
    """The ranks of the fault, whether it took effect, and whether the dumps show it."""
    steps = made.steps[injected.rank]
    members = set(made.groups[made.programs[injected.rank][injected.at].group][1])
    key = _op_of(made, injected).key

    def waits(rank: int) -> bool:
        head = heads[rank]
        return head is not None and head.op.key == key and rank in dumped

    match injected.fault:
        case Fault.CPU_STUCK:
            came = len(steps) == injected.at and heads[injected.rank] is None
            joined = {step.op.key for step in steps}
            held = {
                r
                for r, h in heads.items()
                if h is not None and injected.rank in _meet(made, h.op) and h.op.key not in joined
            }
            seen = injected.rank in dumped and bool(held & dumped)
            return {injected.rank}, came and bool(held), seen
        case Fault.ALONE:
            came = _is_at(steps, injected.at, heads[injected.rank]) and _all_began(made, key)
            others = [r for r in members - {injected.rank} if r in dumped and _ended(made, r, key)]
            return {injected.rank}, came, injected.rank in dumped and bool(others)
        case Fault.DEVICE:
            came = _is_at(steps, injected.at, heads[injected.rank])
            started = [r for r in members - {injected.rank} if _began(made, r, key)]
            seen = injected.rank in dumped and any(map(waits, started))
            return {injected.rank}, came and bool(started), seen
        case Fault.SIZE | Fault.OP:
            callers = {r for r in members if any(s.op.key == key for s in made.steps[r])}
            came = injected.rank in callers and len(callers) > 1
            return {injected.rank}, came, injected.rank in dumped and len(callers & dumped) > 2
        case Fault.ORDER:
            return _order_evidence(made, injected, heads, dumped)
        case Fault.NETWORK:
            came = _all_began(made, key)
            return set(), came, all(r in dumped for r in members)


def _meet(made: Job, op: Op) -> set[int]:
    """The members of an op."""
    ranks = made.groups[op.group][1]
    return {ranks[op.src], ranks[op.dst]} if op.is_p2p else set(ranks)


def _is_at(steps: Sequence[Step], at: int, head: Step | None) -> bool:
    return head is not None and len(steps) > at and head is steps[at]


def _all_began(made: Job, key: Key) -> bool:
    return all(_began(made, rank, key) for rank in made.groups[key[0]][1])


def _began(made: Job, rank: int, key: Key) -> bool:
    return any(step.op.key == key and step.began for step in made.steps[rank])


def _ended(made: Job, rank: int, key: Key) -> bool:
    return any(step.op.key == key and step.ended for step in made.steps[rank])


def _order_evidence(
    made: Job, injected: Injected, heads: dict[int, Step | None], dumped: set[int]
) -> tuple[set[int], bool, bool]:
    """The ranks in one of the two ops while the rank is in the other; together a circle."""
    first, second = made.programs[injected.rank][injected.at : injected.at + 2]
    head = heads[injected.rank]
    if head is None or head.op.key != second.key:
        return set(), False, False
    common = set(made.groups[first.group][1]) & set(made.groups[second.group][1])
    circle = {injected.rank}
    for rank in common - {injected.rank}:
        other = heads[rank]
        if other is not None and other.op.key == first.key:
            circle.add(rank)
    seen = circle <= dumped
    if made.ahead > 1:  # all others joined, so only the order of devices shows it
        others = {*made.groups[first.group][1], *made.groups[second.group][1]}
        seen = others <= dumped and all(
            any(step.op.key == op.key for step in made.steps[rank])
            for op in (first, second)
            for rank in made.groups[op.group][1]
        )
    return circle, len(circle) > 1, seen


# -- writing their dumps ---------------------------------------------------------------------


def _sizes(op: str, members: int) -> tuple[list[list[int]], list[list[int]]]:
    match op:
        case "_all_gather_base":
            return [[16]], [[16 * members]]
        case "_reduce_scatter_base":
            return [[16 * members]], [[16]]
        case _:
            return [[64]], [[64]]


def trace(made: Job) -> Trace:
    dice = random.Random(made.seed * 7 + 3)
    folder = Folder(groups=made.groups, world=made.world)
    names = list(made.groups)
    for rank in range(made.world):
        if rank in made.missing:
            continue
        own_groups = [name for name in names if rank in made.groups[name][1]]
        pg_ids = dict(zip(own_groups, sorted(dice.sample(range(40), len(own_groups))), strict=True))
        rows = _rows(made, rank, pg_ids)
        status = _status(rows, pg_ids)
        if made.active_only:
            rows = [row for row in rows if row.state != "completed"]
        first = max(0, len(rows) - made.ring)
        if made.reset and (over := [at for at, row in enumerate(rows) if row.retired]):
            first = max(first, dice.choice(over))
            for number, row in enumerate(rows[first:]):
                row.record_id = number
        node = rank // RANKS_A_NODE
        info = None
        if made.identities:
            info = RankInfo(rank, made.world, f"node{node}", f"boot{node}", 1000 + rank)
        offset = round(-made.skew.get(node, 0.0) * 1e6) if made.offsets_known else None
        folder.rank(rank, *rows[first:], status=status, info=info, offset_ns=offset)
    return folder.trace()


def _rows(made: Job, rank: int, pg_ids: dict[str, int]) -> list[Row]:
    skew = made.skew.get(rank // RANKS_A_NODE, 0.0)
    seqs: dict[str, int] = {}
    p2p: dict[str, int] = {}
    rows: list[Row] = []
    for step in made.steps[rank]:
        op = step.op
        if op.is_p2p:
            p2p[op.group] = p2p.get(op.group, rank % 3) + 1
            arrow = f"send {op.src}->{op.dst}" if op.name == "send" else f"recv {op.dst}<-{op.src}"
            row = Row(f"{made.backend}:{arrow}", seqs.get(op.group, 0), p2p=True)
            row.p2p_seq = p2p[op.group]
        else:
            seqs[op.group] = op.seq
            row = _collective(made, step)
        parts = _parts(made, op, row) if made.uneven else [row]
        for part in parts:
            part.group, part.pg_id, part.at = op.group, pg_ids[op.group], step.created + skew
            part.record_id = len(rows)
            _write_state(made, step, part, skew)
            rows.append(part)
    return rows


def _parts(made: Job, op: Op, row: Row) -> list[Row]:
    """An uneven gather as NCCL's recorder shows it: a part for each member, and the end."""
    desc, ranks = made.groups[op.group]
    if desc != "DATA" or op.name != "_all_gather_base" or not row.name.endswith("_all_gather_base"):
        return [row]
    shape = [[int(row.ins[0][0]) + member] for member in range(len(ranks))]
    part = replace(row, name=f"{made.backend}:_broadcast_oop")
    end = replace(row, name=f"{made.backend}:ALLGATHER_coalesced")
    return [*(replace(part, ins=[size], outs=[size]) for size in shape), end]


def _collective(made: Job, step: Step) -> Row:
    op = step.op
    name = op.name
    if step.wrong is Fault.OP:
        name = "all_reduce" if op.name != "all_reduce" else "_all_gather_base"
    ins, outs = _sizes(name, len(made.groups[op.group][1]))
    if step.wrong is Fault.SIZE:
        ins, outs = (
            [[n * 2 for n in size] for size in ins],
            [[n * 2 for n in size] for size in outs],
        )
    return Row(f"{made.backend}:{name}", op.seq, ins=ins, outs=outs)


def _write_state(made: Job, step: Step, row: Row, skew: float) -> None:
    if made.backend == "gloo":
        row.state, row.retired = "scheduled", bool(step.ended)
        return
    row.state = (
        "completed" if step.ended else "started" if made.timing and step.began else "scheduled"
    )
    row.retired = bool(step.ended)
    if step.ended and made.reports_completion:
        row.completed_at = step.ended + 2.0 + skew
    if made.timing and step.began:
        row.started_at = step.began + skew


def _status(rows: Sequence[Row], pg_ids: dict[str, int]) -> dict[int, Status]:
    """As NCCL counts: P2P ops use the same counters."""
    status = {pg_id: Status() for pg_id in pg_ids.values()}
    for row in rows:
        assert row.pg_id is not None
        old, number = status[row.pg_id], row.p2p_seq if row.p2p else row.seq
        done = row.state == "completed" or row.retired
        status[row.pg_id] = Status(number, -1, number if done else old.completed)
    return status
