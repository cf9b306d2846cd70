"""A folder of Flight Recorder dumps such as a hung training job of N ranks leaves behind.

Tensor-parallel groups of 8, data-parallel groups across them and the world; every ring is full, has
overrun long ago and holds stacks of 10 to 20 frames. One rank has not come to the last collective
of the world, all others wait there. Files are laid out as PyTorch lays them out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from frd.flight.write import TorchPickler

PREFIX: Final = "nccl_trace_rank_"
TENSOR_PARALLEL: Final = 8
_LOST: Final = 40_000
"""Records before those that the ring still holds."""
_START_NS: Final = 1_790_000_000_000_000_000
_STEP_NS: Final = 1_700_000
_LAYERS: Final = 24
_BFLOAT16: Final = ["BFloat16"]


@dataclass(frozen=True, eq=False)
class _Call:
    """One place in the program that issues a collective."""

    group: str
    op: str
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    dtypes: list[str]
    frames: list[dict[str, Any]]


def write_folder(folder: Path, ranks: int, entries: int) -> int:
    """Fill `folder`; gives the rank that is at fault."""
    folder.mkdir(parents=True)
    absent = ranks // 3
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write, folder, ranks, entries, absent), range(ranks), chunksize=8))
    return absent


def _write(folder: Path, ranks: int, entries: int, absent: int, rank: int) -> None:
    program = _program()
    frames = {id(frame): frame for call in program for frame in call.frames}
    document = _document(rank, ranks, entries, absent)
    data = TorchPickler(shared=tuple(frames.values())).dumps(document)
    (folder / f"{PREFIX}{rank}").write_bytes(data)


# -- one rank ------------------------------------------------------------------------------------


def _document(rank: int, ranks: int, entries: int, absent: int) -> dict[str, Any]:
    groups = _groups(rank, ranks)
    rows = [*_rows(rank, groups, entries)]
    counts = dict(_issued(entries)[1])
    if rank == absent:
        rows.pop()
        counts["world"] -= 1
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(list(members))}
            for name, desc, members in groups.values()
        },
        "comm_lib_version": "2.27.3",
        "pg_status": {
            str(at): {
                "last_enqueued_collective": counts[kind],
                "last_started_collective": -1,
                "last_completed_collective": counts[kind] - (kind == "world" and rank != absent),
            }
            for at, kind in enumerate(groups)
        },
        "entries": rows,
    }


def _groups(rank: int, ranks: int) -> dict[str, tuple[str, str, range]]:
    """Name, description and members of the groups of one rank."""
    line, column = divmod(rank, TENSOR_PARALLEL)
    first = line * TENSOR_PARALLEL
    return {
        "world": ("0", "default_pg", range(ranks)),
        "tp": (str(1 + line), "TP", range(first, min(first + TENSOR_PARALLEL, ranks))),
        "dp": (str(100_000 + column), "DP", range(column, ranks, TENSOR_PARALLEL)),
    }


def _rows(
    rank: int, groups: dict[str, tuple[str, str, range]], entries: int
) -> Iterator[dict[str, Any]]:
    pairs = {kind: group[:2] for kind, group in groups.items()}
    pg_ids = {kind: at for at, kind in enumerate(groups)}
    jitter = random.Random(rank)
    issued, _ = _issued(entries)
    for record, call, seq in issued:
        created = _START_NS + record * _STEP_NS + jitter.randrange(90_000)
        done = record < _LOST + entries - 1
        yield {
            "frames": call.frames,
            "record_id": record,
            "pg_id": pg_ids[call.group],
            "process_group": pairs[call.group],
            "thread_name": "pt_autograd_0" if call.op == "_reduce_scatter_base" else "python",
            "thread_id": str(140_000_000_000_000 + rank),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": f"nccl:{call.op}",
            "time_created_ns": created,
            "input_sizes": call.input_sizes,
            "input_dtypes": call.dtypes,
            "output_sizes": call.output_sizes,
            "output_dtypes": call.dtypes,
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + 1_200_000 if done else None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }


# -- the program that all ranks run ----------------------------------------------------------------


@cache
def _issued(entries: int) -> tuple[list[tuple[int, _Call, int]], Counter[str]]:
    """What the ring holds, (record, call, seq), and how many of each group there were at all."""
    program = _program()
    first = -(_LOST + entries) % len(program)  # so that the last of all is the world's
    counts: Counter[str] = Counter()
    issued = []
    for record in range(_LOST + entries):
        call = program[(first + record) % len(program)]
        counts[call.group] += 1
        if record >= _LOST:
            issued.append((record, call, counts[call.group]))
    return issued, counts


@cache
def _program() -> list[_Call]:
    """One training step: its collectives in order."""
    shared = 8192 * 4096
    calls = []
    for layer in range(_LAYERS):
        kind = ("attention", "mlp", "experts")[layer % 3]
        part = [[2048, 4096 + 128 * (layer % 3)]]
        whole = [[2048 * TENSOR_PARALLEL, part[0][1]]]
        calls.append(_call("tp", "_all_gather_base", part, whole, f"{kind}_forward", 10))
        calls.append(_call("tp", "_reduce_scatter_base", whole, part, f"{kind}_backward", 13))
        grads = [[shared + layer % 4]]
        calls.append(_call("dp", "all_reduce", grads, grads, f"bucket_{layer % 4}", 16))
    calls.append(_call("dp", "broadcast", [[1 << 20]], [[1 << 20]], "parameters", 18))
    calls.append(_call("world", "all_reduce", [[1]], [[1]], "clip_grad_norm", 20))
    return calls


def _call(
    group: str, op: str, inputs: list[list[int]], outputs: list[list[int]], place: str, depth: int
) -> _Call:
    return _Call(group, op, inputs, outputs, _BFLOAT16, _stack(place, depth))


@cache
def _stack(place: str, depth: int) -> list[dict[str, Any]]:
    """Innermost first; the outer half is the same for all, as it is in a program."""
    inner = [_frame(f"{place}_{at}", f"model/{place}.py", 40 + 7 * at) for at in range(depth // 2)]
    outer = [_frame(f"train_{at}", "trainer/loop.py", 200 + at) for at in range(depth - len(inner))]
    return inner + outer


@cache
def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": f"/opt/training/lib/python3.11/{file}", "line": line}
