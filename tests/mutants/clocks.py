"""Faults in what aligns the clocks of nodes."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_ALL = ("tests/unit/test_clock.py", "tests/property/test_clock.py", "tests/unit/test_clocks.py")
_BOUNDS = Module("frd/engine/clocks/offset_bounds.py", ("tests/unit/test_bounds.py", *_ALL))
_HULL = Module("frd/engine/clocks/feasible_line.py", ("tests/unit/test_hull.py", *_ALL))
_CLOCK = Module("frd/engine/clocks/estimator.py", _ALL)
_REALTIME = Module("frd/engine/clocks/realtime_table.py", ("tests/unit/test_realtime.py", *_ALL))
_CLOCKS = Module(
    "frd/service/clocks/agent_clocks.py",
    ("tests/unit/test_clocks.py", "tests/unit/test_session.py"),
)

MUTANTS = (
    Mutant(
        "bounds-lower-sign",
        _BOUNDS,
        "self._low, self._low_at = first.t3 - first.t4, first.t4",
        "self._low, self._low_at = first.t4 - first.t3, first.t4",
        "service minus node is taken as node minus service",
    ),
    Mutant(
        "bounds-binds-less",
        _BOUNDS,
        "(t2 - t1 - self._high) * DRIFT <= t1 - self._high_at",
        "(t2 - t1 - self._high) * DRIFT >= t1 - self._high_at",
        "of two upper bounds the one is kept that binds less",
    ),
    Mutant(
        "bounds-age",
        _BOUNDS,
        "self._high + abs(raw - self._high_at) // DRIFT + 1",
        "self._high + (raw - self._high_at) // DRIFT - 1",
        "a bound tightens for times before it, and is rounded inward",
    ),
    Mutant(
        "bounds-stale-half",
        _BOUNDS,
        "self._half, self._half_at = half, raw",
        "self._half = half",
        "what was said last ages from the first time on that anything was said",
    ),
    Mutant(
        "hull-cut-both",
        _HULL,
        "< self._top or y_lower - slope * x_lower > self._bottom",
        "< self._top and y_lower - slope * x_lower > self._bottom",
        "a corridor is laid anew only when it is cut on both sides at once",
    ),
    Mutant(
        "hull-lower-upside-down",
        _HULL,
        "low = _hull([(x, -y) for _, (x, y) in batches])",
        "low = _hull([(x, y) for _, (x, y) in batches])",
        "the hull of the lower points is that below them",
    ),
    Mutant(
        "hull-better-lower",
        _HULL,
        "if lower - y_lower > slope * (x - x_lower):",
        "if lower - y_lower < slope * (x - x_lower):",
        "of a batch's lower points the worst is kept",
    ),
    Mutant(
        "hull-never-forgets",
        _HULL,
        "if is_cut or self._fitted >= _FIT_EVERY:",
        "if is_cut:",
        "a corridor rests on batches that were let go of long ago",
    ),
    Mutant(
        "clock-service-step",
        _CLOCK,
        "return x.t1 < self._node.stepped_at or x.t2 < service_stepped_at",
        "return x.t1 < self._node.stepped_at",
        "an exchange from before the service's clock was set is believed",
    ),
    Mutant(
        "clock-unagreed",
        _CLOCK,
        "        self._agreed = 0\n",
        "",
        "the one exchange that contradicts all others is believed at once",
    ),
    Mutant(
        "clock-stale-corridor",
        _CLOCK,
        "        self._agreed = 0\n        self._corridor = None\n",
        "        self._agreed = 0\n",
        "after a contradiction the estimate still rests on what was dropped",
    ),
    Mutant(
        "clock-silent-unit",
        _CLOCK,
        "SILENT_NS: Final = 120_000_000_000",
        "SILENT_NS: Final = 120_000_000_000_000",
        "two minutes in nanoseconds, thousandfold: silence is never noticed",
    ),
    Mutant(
        "clock-node-slack",
        _CLOCK,
        "half += slack + loose + half // 1_000 + _FLOORS_NS",
        "half += loose + half // 1_000 + _FLOORS_NS",
        "how loosely the node's two clocks were read together is forgotten",
    ),
    Mutant(
        "clock-one-witness",
        _CLOCK,
        "if low <= offset + spare and offset - spare <= high:",
        "if low <= offset + spare or offset - spare <= high:",
        "bounds of collectives are held to agree when one of two does",
    ),
    Mutant(
        "clock-slowest-message",
        _CLOCK,
        "delay = min(delay, self._least.pop()[1])",
        "delay = max(delay, self._least.pop()[1])",
        "the slowest message of a window tells the offset",
    ),
    Mutant(
        "clock-rates",
        _CLOCK,
        "corridor.slope - self._node.rate + table.rate",
        "corridor.slope + self._node.rate + table.rate",
        "the slewing of the node's clock moves its offset the wrong way",
    ),
    Mutant(
        "clock-history-trusted",
        _CLOCK,
        "            self._history.distrust(self._node.last_real)\n",
        "            self._history.line(self._node.last_real)\n",
        "what a dropped interval aligned is still believed of the past",
    ),
    Mutant(
        "realtime-back-is-calm",
        _REALTIME,
        "not (-CALM_NS < moved < CALM_NS and 0 <= slack < CALM_NS)",
        "not (moved < CALM_NS and 0 <= slack < CALM_NS)",
        "a clock that is set back among readings in a row is passed over",
    ),
    Mutant(
        "realtime-between",
        _REALTIME,
        "return ahead, max(\n            abs(before - ahead)",
        "return ahead, min(\n            abs(before - ahead)",
        "between two readings the nearer one holds, though a step may lie there",
    ),
    Mutant(
        "realtime-rate-over-step",
        _REALTIME,
        "max(raw - _RATE_OVER_NS, self._segment_raw - 1)",
        "raw - _RATE_OVER_NS",
        "a step is taken for slewing",
    ),
    Mutant(
        "realtime-grows",
        _REALTIME,
        "return self._aheads[-1], self._slacks[-1] + _grown(raw - raws[-1])",
        "return self._aheads[-1], self._slacks[-1]",
        "a reading is as good hours later",
    ),
    Mutant(
        "clocks-overclaimed",
        _CLOCKS,
        "return needed + moved <= claimed <= 2 * needed",
        "return claimed <= 2 * needed",
        "an alignment stays in use although more than is claimed has to be",
    ),
    Mutant(
        "clocks-never-tighter",
        _CLOCKS,
        "return needed + moved <= claimed <= 2 * needed",
        "return needed + moved <= claimed",
        "the first wide alignment stays in use for ever",
    ),
    Mutant(
        "clocks-same-reading",
        _CLOCKS,
        "later = raw > clock.read_at",
        "later = raw >= clock.read_at",
        "a reading that came on the other stream is taken again, and the batch refused",
    ),
    Mutant(
        "clocks-hint-swapped",
        _CLOCKS,
        "            (early, late.name, hint.early_least_ns, None),\n"
        "            (late, early.name, None, hint.late_most_ns),\n",
        "            (late, early.name, hint.early_least_ns, None),\n"
        "            (early, late.name, None, hint.late_most_ns),\n",
        "what a collective says of one clock is told of the other",
    ),
    Mutant(
        "clocks-newer-stream",
        _CLOCKS,
        "        if stream == self._stream:  # else a newer",
        "        if True:  # else a newer",
        "an old stream that ends late takes the clock of the new one along",
    ),
)
