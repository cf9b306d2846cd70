"""Faults in what reads Flight Recorder dumps and the messages of streams."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_DUMPS = (
    "tests/unit/test_flight_decode.py",
    "tests/unit/test_flight_unpickle.py",
    "tests/property/test_flight.py",
)
_DECODE = Module("frd/flight/decode.py", _DUMPS)
_UNPICKLE = Module("frd/flight/pickles/unpickle.py", _DUMPS)
_WALK = Module(
    "frd/flight/pickles/walk.py", ("tests/unit/test_lockstep.py", "tests/property/test_lockstep.py")
)
_MESSAGES = ("tests/unit/test_wire.py", "tests/property/test_wire.py")
_COLUMNS = Module("frd/wire/columns.py", _MESSAGES)
_READER = Module("frd/wire/decode.py", _MESSAGES)
_CLOCK = Module("frd/wire/clock.py", ("tests/unit/test_wire_clock.py", *_MESSAGES))
_MEMORY = Module("frd/wire/memory.py", ("tests/unit/test_wire_memory.py", *_MESSAGES))
_PLACES = ("tests/unit/test_places.py", "tests/unit/test_stacktext.py")
_STACKTEXT = Module("frd/flight/stacks/text.py", _PLACES)
_KNOWN_PLACES = Module("frd/flight/stacks/places.py", _PLACES)
_DURATIONS = Module("frd/offline/analysis/durations.py", ("tests/unit/test_durations.py",))

MUTANTS = (
    Mutant(
        "stack-of-the-parent",
        _STACKTEXT,
        "return frames[: at + 1]",
        "return frames",
        "what a forked worker has of its parent's stack is told as its own",
    ),
    Mutant(
        "places-idle-worker",
        _KNOWN_PLACES,
        'return "" if _is_idle(child) else child.own[0].place',
        "return child.own[0].place",
        "a DataLoader worker without a batch is said to hold up its rank",
    ),
    Mutant(
        "durations-file-as-proof",
        _DURATIONS,
        "newest = max(_newest(trace), trace.dumped_from_ns)",
        "newest = max(_newest(trace), trace.dumped_until_ns)",
        "the time of a file, which copying changes, proves how long an op had waited",
    ),
    Mutant(
        "durations-older-file",
        _DURATIONS,
        "trace.dumped_until_ns > 0 and trace.dumped_until_ns >= newest",
        "trace.dumped_until_ns > 0",
        "a file that is older than its records acquits a rank that hangs",
    ),
    Mutant(
        "durations-absent",
        _DURATIONS,
        "others = np.concatenate((others, taken.rows(absent.astype(np.int64))))",
        "pass",
        "what an absent rank recorded meanwhile does not prove that its peers still waited",
    ),
    Mutant(
        "durations-ahead",
        _DURATIONS,
        "if behind[call] == 0 and over > 0:",
        "if behind[call] == 0 and over < 0:",
        "an op that was enqueued far ahead of its time counts as waiting all the while",
    ),
    Mutant(
        "durations-timeout",
        _DURATIONS,
        "np.where(limit > 0, np.minimum(patience, limit), patience)",
        "patience",
        "an op that outlasted its own timeout is young",
    ),
    Mutant(
        "decode-status-order",
        _DECODE,
        "row.last_started_collective,\n                row.last_completed_collective,",
        "row.last_completed_collective,\n                row.last_started_collective,",
        "two counters of a group are told for each other",
    ),
    Mutant(
        "decode-gzip-bound",
        _DECODE,
        "member.decompress(data, max_bytes + 1 - len(unpacked))",
        "member.decompress(data, max_bytes - len(unpacked))",
        "a packed dump at its bound is cut instead of refused, and no bound is left for the next",
    ),
    Mutant(
        "decode-budget",
        _DECODE,
        "self.pay(len(fields) + len(shapes) + sum(map(len, shapes)) + dtypes)",
        "self.pay(len(fields) + len(shapes) + dtypes)",
        "a shape that is named a million times costs nothing",
    ),
    Mutant(
        "decode-unsorted-members",
        _DECODE,
        "return GroupInfo(name, desc, tuple(sorted(members)))",
        "return GroupInfo(name, desc, tuple(members))",
        "members are in the order of a set, which is that of small numbers by chance",
    ),
    Mutant(
        "decode-many-warnings",
        _DECODE,
        'warnings[MAX_WARNINGS:] = [f"{more} more like these"]',
        'warnings[more:] = [f"{more} more like these"]',
        "of too many warnings as many are kept as are too many",
    ),
    Mutant(
        "unpickle-memo",
        _UNPICKLE,
        "| [jr]..[\\x00-\\x7f]\\x00 ",
        "| [jr].{4} ",
        "one opcode makes the unpickler reserve gigabytes",
    ),
    Mutant(
        "unpickle-repair",
        _UNPICKLE,
        'b"?" * (error.end - error.start)',
        'b"?"',
        "a mended string is shorter than the pickle says",
    ),
    Mutant(
        "unpickle-short-string",
        _UNPICKLE,
        "            start = position + 2\n",
        "            start = position + 5\n",
        "the length of a short string is read as that of a long one",
    ),
    Mutant(
        "walk-unsigned",
        _WALK,
        "return signed.astype(np.int32).astype(np.int64) if opcode == _INT32 else signed",
        "return signed",
        "negative numbers of four bytes are read as large ones",
    ),
    Mutant(
        "walk-run-over",
        _WALK,
        "        self.fits &= self._at == self._ends\n",
        "        self.fits &= self._at <= self._ends\n",
        "an entry that says more than is expected is taken for one that does not",
    ),
    Mutant(
        "walk-alike-sums",
        _WALK,
        "            index[odd | ~same.all(axis=1)] = len(first)\n",
        "            index[odd] = len(first)\n",
        "what has equal sums is held to be equal",
    ),
    Mutant(
        "walk-true",
        _WALK,
        "        self.fits &= (opcode == _TRUE) | (opcode == _FALSE)\n",
        "",
        "a flag that is neither true nor false is false",
    ),
    Mutant(
        "columns-index-limit",
        _COLUMNS,
        "(highest := int(_highest(indexes))) >= limit",
        "(highest := int(_highest(indexes))) > limit",
        "the first index that was not declared passes",
    ),
    Mutant(
        "columns-negative-time",
        _COLUMNS,
        "if len(times) and int(_highest(times.view(U8))) >= YEAR_2200_NS:",
        "if len(times) and int(_highest(times)) >= YEAR_2200_NS:",
        "times before 1970 pass",
    ),
    Mutant(
        "wire-stale-rows",
        _READER,
        "said = (attempt, m.rank, m.group)",
        "said = (0, m.rank, m.group)",
        "rows that were checked for one attempt pass for another",
    ),
    Mutant(
        "wire-flagless",
        _READER,
        "if columns.flags.max() > _ALL_FLAGS or not columns.flags.min():",
        "if columns.flags.max() > _ALL_FLAGS:",
        "a row that says nothing passes",
    ),
    Mutant(
        "wire-beyond-enqueued",
        _READER,
        "if np.count_nonzero(marks > columns.enqueued):",
        "if np.count_nonzero(marks > columns.enqueued + 1):",
        "a rank completes what it has not joined",
    ),
    Mutant(
        "wire-declared-bytes",
        _READER,
        "self._declared_bytes += m.ByteSize() + _BYTES_PER_DECLARE",
        "self._declared_bytes = m.ByteSize() + _BYTES_PER_DECLARE",
        "a stream may declare without end, as long as it does so bit by bit",
    ),
    Mutant(
        "wire-own-pong",
        _CLOCK,
        "if m.pong_number >= m.number:",
        "if m.pong_number > m.number:",
        "a ping tells of its own answer",
    ),
    Mutant(
        "wire-pause-unit",
        _CLOCK,
        "pause_ms=round(pause_s * 1e3)",
        "pause_ms=round(pause_s * 1e6)",
        "agents are asked to wait a thousand times as long",
    ),
    Mutant(
        "wire-slack-sign",
        _CLOCK,
        "int(np.maximum.reduce(slack.view(U8))) > MAX_SLACK_NS",
        "int(np.maximum.reduce(slack)) > MAX_SLACK_NS",
        "readings that are negatively loose pass",
    ),
    Mutant(
        "wire-values-turned",
        _MEMORY,
        "values=values.reshape(len(series), moments),",
        "values=values.reshape(moments, len(series)).T,",
        "samples by moment are taken for samples by series",
    ),
    Mutant(
        "wire-series-twice",
        _MEMORY,
        "if len(np.unique(series)) != len(series):",
        "if not len(np.unique(series)):",
        "a series that is named twice in a batch passes",
    ),
)
