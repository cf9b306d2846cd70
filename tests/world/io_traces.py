"""Traces of I/O by hand, in every dialect, and an independent reader that sums them naively.

The reader uses `json.loads` and a set of microseconds per process, and no code of frd.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

T0_US = 1_700_000_000_000_000

DIALECTS = ("v0", "v1", "v2.0", "v2.2")
_IO = ("POSIX", "STDIO")
_NOT_IO = ("fork", "waitpid")
_READS, _WRITES = ("read", "pread64", "fread"), ("write", "pwrite64", "fwrite")


@dataclass
class Call:
    """Times in µs since `T0_US`."""

    name: str
    at: int
    dur: int
    cat: str = "POSIX"
    file: str = ""
    ret: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    tid: int = 0


def digest(text: str) -> str:
    """The hash that DFTracer 2 gives a text."""
    return "".join(f"{byte:02x}" for byte in hashlib.md5(os.fsencode(text)).digest()[::2])


class Writer:
    """The lines of one process."""

    def __init__(self, dialect: str, pid: int, host: str = "node1") -> None:
        self.dialect, self.pid, self.host = dialect, pid, host
        self._defined: set[str] = set()

    def lines(self, calls: Sequence[Call], *, define: bool = True) -> Iterator[str]:
        """In the order in which calls end, as DFTracer writes them."""
        if self.dialect != "v2.2":
            yield "["
        if define and self.dialect != "v0":
            yield self.metadata("HH", self.host, self._hash(self.host))
        for number, call in enumerate(sorted(calls, key=lambda c: c.at + c.dur)):
            if call.file and define and self.dialect != "v0" and call.file not in self._defined:
                self._defined.add(call.file)
                yield self.metadata("FH", call.file, self._hash(call.file))
            yield self.call(number, call)

    def metadata(self, kind: str, name: str, value: Any) -> str:
        is_new = self.dialect == "v2.2"
        return _json(
            {
                "name": kind,
                "cat": "dftracer",
                **({"type": 1} if is_new else {}),
                "pid": self.pid,
                "tid": self.pid,
                "ph": 4 if is_new else "M",
                "args": {"hhash": self._hash(self.host), "name": name, "value": value},
            }
        )

    def call(self, number: int, call: Call) -> str:
        args: dict[str, Any] = {"hhash": self._hash(self.host)}
        if self.dialect == "v0":
            args = {"hostname": self.host}
        if call.ret is not None:
            args["ret"] = str(call.ret) if self.dialect == "v0" else call.ret
        args |= call.args
        if call.file:
            if self.dialect == "v0":
                args["fname"] = call.file
            else:
                args["fhash"] = self._hash(call.file)
        text: Any = str if self.dialect == "v0" else int
        return _json(
            {
                "id": text(number),
                "name": call.name,
                "cat": call.cat,
                **({"type": 3} if self.dialect == "v2.2" else {}),
                "pid": text(self.pid),
                "tid": text(call.tid or self.pid),
                "ts": text(T0_US + call.at),
                "dur": text(call.dur),
                "ph": 1 if self.dialect == "v2.2" else "X",
                "args": args,
            }
        )

    def _hash(self, text: str) -> str | int:
        if self.dialect == "v1":
            return int(digest(text)[:4], 16)
        return digest(text)


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"))


def write_trace(path: Path, lines: Sequence[str], *, lines_a_member: int = 0) -> Path:
    """Plain, or gzipped if the name says so; with a member for so many lines each, if given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    if path.suffix != ".gz":
        path.write_text(text)
    elif not lines_a_member:
        path.write_bytes(gzip.compress(text.encode()))
    else:
        parts = [lines[at : at + lines_a_member] for at in range(0, len(lines), lines_a_member)]
        path.write_bytes(b"".join(gzip.compress(("\n".join(p) + "\n").encode()) for p in parts))
    return path


def training(seed: int, *, steps: int = 20, slow: str = "") -> list[Call]:
    """A loader reads ahead in threads while the main thread computes; `slow` is a slow file."""
    dice = random.Random(seed)
    calls: list[Call] = []
    at = dice.randrange(1000)
    for step in range(steps):
        begin = at
        for _ in range(dice.randrange(1, 4)):
            file = f"/data/shard-{dice.randrange(4)}.bin"
            tid = dice.choice((0, 77, 78))
            when = begin + dice.randrange(200)
            calls.append(Call("open64", when, dice.randrange(20), file=file, ret=5, tid=tid))
            for _ in range(dice.randrange(1, 5)):
                took = dice.randrange(1, 300) * (40 if file == slow else 1)
                size = dice.randrange(1 << 20)
                calls.append(Call("read", when, took, file=file, ret=size, tid=tid))
                when += took + dice.randrange(20)
            if dice.random() < 0.9:
                calls.append(Call("close", when, dice.randrange(5), file=file, ret=0, tid=tid))
        wait = dice.randrange(50, 400)
        calls.append(Call("fetch.iter", begin, wait, cat="dataloader", args={"count": step + 1}))
        number = {"epoch": 0, "step": step}
        length = dice.randrange(200, 900)
        calls.append(Call("forward", begin + wait, length, cat="compute", args=dict(number)))
        calls.append(
            Call("backward", begin + wait + length // 2, length, cat="compute", args=dict(number))
        )
        if dice.random() < 0.3:
            calls.append(Call("write", at, 90, file="/ckpt/last.pt", ret=4096))
        if dice.random() < 0.1:
            calls.append(Call("waitpid", at, 5000, ret=99))
        at = begin + wait + length + length // 2 + dice.randrange(100)
    return calls


# -- the naive reader ------------------------------------------------------------------------------


@dataclass
class Naive:
    """Sums of one process; sets hold single microseconds."""

    events: int = 0
    io: set[int] = field(default_factory=set)
    compute: set[int] = field(default_factory=set)
    fetch: set[int] = field(default_factory=set)
    bytes_read: int = 0
    bytes_written: int = 0
    by_file: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    """Sum of durations in µs, bytes, calls."""


def naive(paths: Sequence[Path]) -> dict[int, Naive]:
    """By pid, from whole lines of whole files; microseconds are cut from `T0_US`."""
    records: list[dict[str, Any]] = []
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode("utf-8", "replace").splitlines()
        records += [json.loads(one, strict=False) for one in lines if one.strip().startswith("{")]
    names = {
        str(r["args"]["value"]): r["args"]["name"]
        for r in records
        if r["ph"] in (4, "M") and r["name"] == "FH"
    }
    out: dict[int, Naive] = defaultdict(Naive)
    for r in records:
        if r["ph"] in (1, "X") and "dur" in r:
            _add(out[int(r["pid"])], r, names)
    return dict(out)


def _add(one: Naive, r: dict[str, Any], names: Mapping[str, str]) -> None:
    one.events += 1
    name, args = r["name"], r.get("args", {})
    begin, dur = int(r["ts"]), int(r["dur"])
    covered = range(begin, begin + dur)
    if r["cat"] == "compute":
        one.compute.update(covered)
    elif r["cat"] == "dataloader" and name in ("fetch", "fetch.iter"):
        one.fetch.update(covered)
    elif r["cat"] in _IO and name not in _NOT_IO:
        one.io.update(covered)
        moved = max(int(args.get("ret", 0)), 0) * int(args.get("size", 1))
        if name in _READS:
            one.bytes_read += moved
        if name in _WRITES:
            one.bytes_written += moved
        if file := args.get("fname") or names.get(str(args.get("fhash"))):
            sums = one.by_file[file]
            sums[0] += dur
            sums[1] += moved if name in (*_READS, *_WRITES) else 0
            sums[2] += 1
