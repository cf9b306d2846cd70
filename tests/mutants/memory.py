"""Faults in what samples memory, and in what finds whose rose first."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_JUDGING = (
    "tests/unit/test_memory_series.py",
    "tests/unit/test_memory_scenes.py",
    "tests/unit/test_memory.py",
    "tests/unit/test_memory_limits.py",
    "tests/property/test_memory.py",
)
_BINS = Module("frd/engine/memory/baseline.py", _JUDGING)
_CAUSE = Module("frd/engine/memory/onset.py", _JUDGING)
_INBOX = Module("frd/engine/memory/inbox.py", ("tests/unit/test_memory_table.py", *_JUDGING))
_SERIES = Module("frd/engine/memory/series.py", _JUDGING)
_TREND = Module("frd/engine/memory/trend.py", _JUDGING)
_LEAKS = Module("frd/engine/memory/leaks.py", _JUDGING)
_INCIDENT = Module("frd/engine/memory/incident.py", _JUDGING)
_INCIDENTS = Module("frd/engine/memory/incidents.py", _JUDGING)
_RISE = Module("frd/engine/memory/rise.py", _JUDGING)
_WATCH = Module("frd/engine/memory/detector.py", ("tests/unit/test_memory_watch.py",))
_SAMPLES = Module(
    "agents/frd_agent/memory/samples.py",
    ("tests/unit/test_memory_samples.py", "tests/unit/test_memory_sampler.py"),
)
_TABLE = Module(
    "agents/frd_agent/memory/table.py",
    ("tests/unit/test_memory_samples.py", "tests/unit/test_memory_sampler.py"),
)

MUTANTS = (
    Mutant(
        "series-revision-stands",
        _SERIES,
        "        self.revision += 1\n        n, moments",
        "        n, moments",
        "a rise that was small when it was looked at never becomes a finding",
    ),
    # -- what is usual -------------------------------------------------------------------------
    Mutant(
        "bins-age-sign",
        _BINS,
        "age = (self._newest[row, None] - np.arange(_BINS)) % _BINS",
        "age = (np.arange(_BINS) - self._newest[row, None]) % _BINS",
        "the oldest bins are taken for the newest",
    ),
    Mutant(
        "bins-minimum",
        _BINS,
        "[np.arange(len(row)), (bins - 1) // 2]",
        "[np.arange(len(row)), 0]",
        "one low bin from another time widens the band",
    ),
    Mutant(
        "bins-forgotten-reset",
        _BINS,
        "        self._samples[row] = 0\n        self._usual[row] = False\n",
        "        self._usual[row] = False\n",
        "a process that was replaced is shown with the samples of the one before",
    ),
    Mutant(
        "series-rise-is-usual",
        _SERIES,
        "            self.bin_odd[out] = True\n",
        "",
        "what a series does while it rises becomes usual",
    ),
    Mutant(
        "series-no-sample",
        _SERIES,
        "np.copyto(below, b, where=(v >= 0) & ~above)",
        "np.copyto(below, b, where=~above)",
        "a moment without a sample is one within the band",
    ),
    Mutant(
        "series-onset-sign",
        _SERIES,
        "return lo - _GENTLE * slow, hi",
        "return lo + _GENTLE * slow, hi",
        "a gentle slope began after its last sample within the band",
    ),
    Mutant(
        "series-settled-level",
        _SERIES,
        "        self.bins.only(row, self.mark_at[row])\n",
        "",
        "a rise that has stood still leaves the old level the usual one",
    ),
    Mutant(
        "series-jump-rate",
        _SERIES,
        "np.minimum(short, long), 0.0) * SECOND",
        "np.maximum(short, long), 0.0) * SECOND",
        "a single jump is taken for a rate that goes on",
    ),
    Mutant(
        "series-twice-latest",
        _SERIES,
        "(v > twice_band) & (twice == 0) & rising",
        "(v > twice_band) & rising",
        "the last sample beyond twice the band tells how fast it was left",
    ),
    Mutant(
        "series-old-incident",
        _SERIES,
        "        self.hot[row] = self.incident[row] = 0\n        self.bins.accept",
        "        self.hot[row] = 0\n        self.bins.accept",
        "a rise that fell back stays in its incident",
    ),
    Mutant(
        "series-container",
        _SERIES,
        "used = np.maximum(self.top[self.container[row]], self.top[row])",
        "used = self.top[row]",
        "memory that others on the device use counts as free",
    ),
    Mutant(
        "series-visible-larger",
        _SERIES,
        "self.visible[row] = np.maximum(small, self._policy.memory_min_rise_bytes)",
        "self.visible[row] = np.minimum(small, self._policy.memory_min_rise_bytes)",
        "of two thresholds the smaller one counts",
    ),
    Mutant(
        "inbox-same-moment",
        _INBOX,
        "if begin.item(0) <= previous or",
        "if begin.item(0) < previous or",
        "a moment that is sent again is taken again",
    ),
    Mutant(
        "inbox-newest-first",
        _INBOX,
        "self._newest[row] = begin[-1]",
        "self._newest[row] = begin[0]",
        "the first moment of a batch is remembered as the newest",
    ),
    Mutant(
        "inbox-turn",
        _INBOX,
        "turn = int(_highest(self._turn.take(row)))",
        "turn = int(_lowest(self._turn.take(row)))",
        "two batches of one series are applied at once",
    ),
    Mutant(
        "inbox-limit",
        _INBOX,
        "np.minimum(capacity, MAX_BYTES) * _MAX_OF_CAPACITY",
        "np.minimum(capacity, MAX_BYTES) // _MAX_OF_CAPACITY",
        "a device may be filled to a quarter before its samples are refused",
    ),
    # -- leaks ---------------------------------------------------------------------------------
    Mutant(
        "trend-slows-down",
        _TREND,
        " & (second > _SLOWING * first) & (first > 0)",
        " & (first > 0)",
        "a cache that fills up and stops is a leak",
    ),
    Mutant(
        "trend-ring-order",
        _TREND,
        "place = (self._count[row, None] + np.arange(FLOORS)) % FLOORS",
        "place = (0 * self._count[row, None] + np.arange(FLOORS)) % FLOORS",
        "floors are read in the order of the ring, not of time",
    ),
    Mutant(
        "trend-floor",
        _TREND,
        "self._low[row] = np.minimum(self._low[row], low)",
        "self._low[row] = low",
        "the last value of a stretch is taken for its lowest",
    ),
    Mutant(
        "trend-unit",
        _TREND,
        "return slope / self._stretch_ns * 1e9, steady",
        "return slope / self._stretch_ns * 1e6, steady",
        "bytes a millisecond are told as bytes a second",
    ),
    Mutant(
        "leaks-seen-once",
        _LEAKS,
        "sure = [row for row in mine if self._seen[row] >= _BELIEVED]",
        "sure = [row for row in mine if self._seen[row] > 0]",
        "a trend that was seen once is believed, before that of others who leak as well",
    ),
    Mutant(
        "leaks-whole-device",
        _LEAKS,
        "    return [r for r in rows if not (series.shared[r] and int(series.pool[r]) in pools)]",
        "    return [r for r in rows if int(series.pool[r]) in pools]",
        "a leak that only the whole device shows is told of nobody",
    ),
    # -- incidents -----------------------------------------------------------------------------
    Mutant(
        "cause-tie",
        _CAUSE,
        "first = able[of.lo[able] <= limit]",
        "first = able[of.hi[able] <= limit]",
        "of ranks whose onsets overlap the one seen first is the culprit",
    ),
    Mutant(
        "cause-alone-in-common",
        _CAUSE,
        "common = ranks > 1 and len(together)",
        "common = len(together)",
        "a job of a single rank has common causes only",
    ),
    Mutant(
        "cause-noise-before",
        _CAUSE,
        " & (begun[pool] <= told))",
        ")",
        "a process is blamed for what had filled its device before it rose",
    ),
    Mutant(
        "cause-young-trigger",
        _CAUSE,
        "return of.visible & ~of.young & (of.hot",
        "return of.visible & (of.hot",
        "a rank that warms up is the cause of what happens to others",
    ),
    Mutant(
        "incident-herd",
        _INCIDENT,
        "sure = seen and self.sure and not self.herd and not self.unknown",
        "sure = seen and self.sure and not self.unknown",
        "the first of a phase that all ranks begin is named with confidence",
    ),
    Mutant(
        "incident-told-early",
        _INCIDENT,
        "still = self.newest >= upto - _SILENT_NS",
        "still = self.newest >= upto - _SOON_NS",
        "who lags is not waited for, as if it were silent",
    ),
    Mutant(
        "incidents-victim-first",
        _INCIDENTS,
        "if rank not in incident.first and onset[0] > incident.limit:",
        "if rank not in incident.first and onset[1] > incident.limit:",
        "who may have run out of memory as early is a victim",
    ),
    Mutant(
        "incidents-earliest-request",
        _INCIDENTS,
        "hi = np.array([min(f.at + f.uncertainty_ns for f in by_rank[r]) for r in rank.tolist()])",
        "hi = np.array([max(f.at + f.uncertainty_ns for f in by_rank[r]) for r in rank.tolist()])",
        "a rank whose allocations failed twice did so no earlier than the second time",
    ),
    Mutant(
        "rise-headroom-unknown",
        _RISE,
        "headroom_bytes=int(series.headroom(one)[0]) if knows else -1,",
        "headroom_bytes=int(series.headroom(one)[0]),",
        "a device of unknown size is told to be full",
    ),
    Mutant(
        "watch-joined-after",
        _WATCH,
        "if enqueued > completed and 0 < since <= onset:",
        "if enqueued > completed and 0 < since:",
        "a collective that a rank joined afterwards is told as what it was in",
    ),
    # -- the agent's side ----------------------------------------------------------------------
    Mutant(
        "samples-unsure-unit",
        _SAMPLES,
        "_UNSURE_NS: Final = 40_000_000_000",
        "_UNSURE_NS: Final = 40_000_000",
        "of what a broken stream swallowed 40 ms are sent again, not 40 s",
    ),
    Mutant(
        "samples-rewind-order",
        _SAMPLES,
        "self._waiting.extendleft(reversed(self._sent))",
        "self._waiting.extendleft(self._sent)",
        "what goes out again goes backwards",
    ),
    Mutant(
        "samples-lost-events",
        _SAMPLES,
        "            self._sent_events.extend(events)\n",
        "",
        "a failed allocation that was under way when the stream broke is never told",
    ),
    Mutant(
        "samples-bytes-kept",
        _SAMPLES,
        "        while self._sent and self._sent[0].end_ns < before_ns:\n"
        "            self._bytes -= self._sent.popleft().bytes\n",
        "        while self._sent and self._sent[0].end_ns < before_ns:\n"
        "            self._sent.popleft()\n",
        "what is forgotten still takes room, until none is left",
    ),
    Mutant(
        "samples-jumped-for-ever",
        _SAMPLES,
        "        self._jumped = False\n        with self._lock:",
        "        with self._lock:",
        "after one jump every moment is urgent",
    ),
    Mutant(
        "samples-others-reversed",
        _SAMPLES,
        "self._waiting.extendleft(reversed(others))",
        "self._waiting.extend(others)",
        "moments of another attempt are put behind newer ones of their own",
    ),
    Mutant(
        "table-jump-from",
        _TABLE,
        "        self._from[far] = values[far]\n",
        "",
        "after a jump every value is one",
    ),
    Mutant(
        "table-shrunk",
        _TABLE,
        "if place < 0 or capacity[place] != reading.capacity:",
        "if place < 0:",
        "a capacity that has changed is told as it was first",
    ),
    Mutant(
        "table-absurd",
        _TABLE,
        "believed = (told >= 0) & (told < ABSURD_BYTES)",
        "believed = told >= 0",
        "a driver's -1 as an unsigned number is sent as a value",
    ),
)
