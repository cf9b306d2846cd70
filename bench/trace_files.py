"""Large traces of I/O for benches: one file a rank, in the newest dialect of DFTracer.

The calls are those of a loader: for each of four files an open, three reads, a seek and a close,
then a fetch and a forward span. The text of one rank is made once; others differ in their process
id only, so that writing takes seconds.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Final

_PID: Final = 20_000
_HOST: Final = "6882804a826580cd"
_T0: Final = 1_795_356_552_477_412
_FILES: Final = 1_000
_FILES_A_STEP: Final = 4
_MEMBER: Final = 16 << 20
"""Raw bytes of a gzip member: DFTracer's buffer."""


def write_traces(folder: Path, files: int, events: int, *, packed: bool) -> int:
    """Write `events` spans a file; returns how many were written in all."""
    folder.mkdir(parents=True)
    text, count = _text(events)
    for rank in range(files):
        pid = b"%d" % (_PID + rank)
        mine = text.replace(b'"pid":%d,"tid":%d' % (_PID, _PID), b'"pid":%b,"tid":%b' % (pid, pid))
        mine = mine.replace(b'"RANK"', b'"%d"' % rank, 1)
        path = folder / f"job-{rank}.pfw"
        if packed:
            path.with_suffix(".pfw.gz").write_bytes(_members(mine))
        else:
            path.write_bytes(mine)
    return files * count


def _members(text: bytes) -> bytes:
    out = []
    at = 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + _MEMBER) + 1
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        out.append(packer.compress(text[at:end]) + packer.flush())
        at = end
    return b"".join(out)


def _text(events: int) -> tuple[bytes, int]:
    dice = random.Random(1)
    hashes = [f"{dice.getrandbits(64):016x}" for _ in range(_FILES)]
    lines = [_metadata("HH", "node1", _HOST), _metadata("CM", "rank", "RANK")]
    lines += [_metadata("FH", f"/data/shard-{n}.bin", one) for n, one in enumerate(hashes)]
    at, count, step = _T0, 0, 0
    while count < events:
        begin = at
        for file in dice.choices(hashes, k=_FILES_A_STEP):
            for name in ("open64", "read", "read", "read", "lseek64", "close"):
                took = dice.randrange(1, 500)
                args = '"ret":295904,"count":295905' if name == "read" else '"ret":5'
                lines.append(_call(count, name, "POSIX", 3, at, took, f'{args},"fhash":"{file}"'))
                at += took + dice.randrange(1, 50)
                count += 1
        for name, cat in (("fetch.iter", "dataloader"), ("forward", "compute")):
            args = f'"epoch":0,"step":{step},"count":1'
            lines.append(_call(count, name, cat, 6, begin, dice.randrange(500, 5_000), args))
            count += 1
        step += 1
    return ("\n".join(lines) + "\n").encode(), count


def _metadata(kind: str, name: str, value: str) -> str:
    return (
        f'{{"name":"{kind}","cat":"dftracer","type":1,"pid":{_PID},"tid":{_PID},"ph":4,'
        f'"args":{{"hhash":"{_HOST}","name":"{name}","value":"{value}"}}}}'
    )


def _call(number: int, name: str, cat: str, kind: int, at: int, took: int, args: str) -> str:
    return (
        f'{{"id":{number},"name":"{name}","cat":"{cat}","type":{kind},"pid":{_PID},"tid":{_PID},'
        f'"ts":{at},"dur":{took},"ph":1,"args":{{"hhash":"{_HOST}",{args}}}}}'
    )
