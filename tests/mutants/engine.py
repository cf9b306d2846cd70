"""Faults in what matches collectives and finds who holds them up."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_MATCH = Module(
    "frd/engine/matching/signature_rules.py",
    ("tests/unit/test_match.py", "tests/unit/test_cause.py", "tests/unit/test_attempt.py"),
)
_RING = Module(
    "frd/engine/matching/open_collectives.py",
    ("tests/unit/test_ring.py", "tests/property/test_ring.py", "tests/unit/test_attempt.py"),
)
_CAUSES = (
    "tests/unit/test_waits.py",
    "tests/unit/test_cause.py",
    "tests/unit/test_moment.py",
    "tests/unit/test_incident.py",
    "tests/property/test_cause.py",
)
_WAITS = Module("frd/engine/hangs/ops_in_flight.py", _CAUSES)
_EDGES = Module("frd/engine/hangs/wait_graph.py", _CAUSES)
_BLAME = Module("frd/engine/hangs/attribution.py", _CAUSES)
_INCIDENT = Module(
    "frd/engine/hangs/incidents.py", ("tests/unit/test_incident.py", "tests/unit/test_attempts.py")
)
_ENDS = ("tests/unit/test_endings.py", "tests/unit/test_incident.py")
_ENDINGS = Module("frd/engine/hangs/lost_ranks.py", _ENDS)
_EXITS = Module("frd/engine/hangs/exits.py", _ENDS)
_LATENESS = (
    "tests/unit/test_arrivals.py",
    "tests/unit/test_judge.py",
    "tests/unit/test_straggler.py",
    "tests/property/test_straggler.py",
)
_STRAGGLER = Module("frd/engine/stragglers/detection.py", _LATENESS)
_ARRIVALS = Module(
    "frd/engine/matching/arrivals.py",
    (*_LATENESS, "tests/unit/test_clocks.py", "tests/unit/test_ring.py"),
)
_PAUSES = Module(
    "frd/engine/matching/usual_waits.py",
    ("tests/unit/test_pauses.py", "tests/unit/test_attempt.py"),
)
_COLLECTIVES = Module(
    "frd/engine/matching/collectives.py",
    ("tests/unit/test_pauses.py", "tests/unit/test_attempt.py"),
)
_CLAIM = Module("frd/engine/hangs/incident.py", (*_ENDS, "tests/unit/test_severity.py"))

MUTANTS = (
    # -- signatures ----------------------------------------------------------------------------
    Mutant(
        "match-balance-sign",
        _MATCH,
        "_total(signature.input_sizes) - _total(signature.output_sizes)",
        "_total(signature.input_sizes) + _total(signature.output_sizes)",
        "what an all_to_all takes out is added to what it puts in",
    ),
    Mutant(
        "match-gather-outputs",
        _MATCH,
        '    "gather": Rule.INPUT,',
        '    "gather": Rule.ALL,',
        "a gather is held to have outputs on every rank, not on its root only",
    ),
    Mutant(
        "match-own-share",
        _MATCH,
        " and one[0] in all_of_them",
        "",
        "an uneven list passes though the member's own share is not among it",
    ),
    Mutant(
        "match-empty-input",
        _MATCH,
        "signature.op in _STRICT and all(map(prod, signature.input_sizes))",
        "signature.op in _STRICT",
        "an op with empty inputs is believed to wait for all of its members",
    ),
    Mutant(
        "match-strictest-part",
        _MATCH,
        "return any(part.startswith(_SYNCHRONIZING) for part in parts)",
        "return all(part.startswith(_SYNCHRONIZING) for part in parts)",
        "ops issued as one are as strict as the laxest of them",
    ),
    # -- accumulators --------------------------------------------------------------------------
    Mutant(
        "ring-window-end",
        _RING,
        "max(high, last + 1)",
        "max(high, last)",
        "the end of a window, one beyond the last seq, is taken for the last seq",
    ),
    Mutant(
        "ring-second-minimum",
        _RING,
        "s.second_created[slot] = np.maximum(",
        "s.second_created[slot] = np.minimum(",
        "the second to last arrival is accumulated as a minimum",
    ),
    Mutant(
        "ring-passed-one",
        _RING,
        "passed = np.minimum(last, created)",
        "passed = last",
        "a row that comes late but arrived early is not counted among those who were passed",
    ),
    Mutant(
        "ring-grown-place",
        _RING,
        "base + (seq & (capacity - 1))",
        "base + (seq & (old - 1))",
        "a chunk that has grown keeps its collectives where the smaller one had them",
    ),
    Mutant(
        "ring-never-over",
        _RING,
        "        freed[freed == NEVER] = 0\n        return freed",
        "        return freed",
        "the mark for an untold end is handed out as a time",
    ),
    Mutant(
        "ring-forgotten-clear",
        _RING,
        "        s.clear(slot)\n        self.open -= len(slot)",
        "        self.open -= len(slot)",
        "slots are given back with the counts of the collective before",
    ),
    Mutant(
        "ring-late-rows",
        _RING,
        "w.done[group] = np.maximum(w.done[group], end - 1)",
        "w.done[group] = np.maximum(w.done[group], -1)",
        "rows that come after their collective was closed open it again",
    ),
    # -- who waits -----------------------------------------------------------------------------
    Mutant(
        "waits-untold-oldest",
        _WAITS,
        "np.lexsort((source, np.where(since > 0, since, _UNTOLD), rank))",
        "np.lexsort((source, since, rank))",
        "an op whose age nobody told counts as the oldest of its rank",
    ),
    Mutant(
        "waits-absent-and-inside",
        _WAITS,
        "inside = joined & (completed + 1 == seq)",
        "inside = joined & (completed == seq)",
        "who completed the seq before is not taken to be inside this one",
    ),
    Mutant(
        "waits-any-source",
        _WAITS,
        "counterparts = (channel, Instance(channel.group, UNKNOWN_SEQ, -1, peer))",
        "counterparts = (channel,)",
        "a receiver that takes any sender's message is not seen to be there",
    ),
    Mutant(
        "waits-first-or-last",
        _WAITS,
        "first=int(rank[known[told.argmin()]]) if len(told) else -1,",
        "first=int(rank[known[told.argmax()]]) if len(told) else -1,",
        "the last who joined is named as the first",
    ),
    Mutant(
        "edges-proof-margin",
        _EDGES,
        "as_of.at < since.at + (as_of.margin_ns(since) or 0)",
        "as_of.at < since.at - (as_of.margin_ns(since) or 0)",
        "what two clocks may be off by speaks against a rank, not for it",
    ),
    Mutant(
        "edges-rank-for-row",
        _EDGES,
        "if self.picture.gap[row]:",
        "if self.picture.gap[rank]:",
        "a column by row is looked at by rank, which is the same in small jobs",
    ),
    Mutant(
        "edges-late-unit",
        _EDGES,
        "self.rules.late_s * 1e9",
        "self.rules.late_s * 1e12",
        "telemetry is late after milliseconds' worth of nanoseconds, that is never",
    ),
    Mutant(
        "edges-left-behind",
        _EDGES,
        "return is_synchronizing(op) or len(those.inside) == 1",
        "return is_synchronizing(op) and len(those.inside) == 1",
        "of an op that synchronizes only a single straggler counts as left behind",
    ),
    Mutant(
        "edges-ripe-early",
        _EDGES,
        "last = self.waits.attendance(wait.instance).last_since",
        "last = self.waits.attendance(wait.instance).first_since",
        "an op that somebody has only just come to is judged as if all had been there",
    ),
    Mutant(
        "edges-gone-inside",
        _EDGES,
        "        if gone:\n            return [Member(rank) for rank in gone]\n",
        "",
        "a rank that died inside a collective is not looked for among those in it",
    ),
    Mutant(
        "edges-noticed-at-once",
        _EDGES,
        "self._is_told(node.rank, since + _NOTICED_NS)",
        "self._is_told(node.rank, since)",
        "a recorder that has not noticed yet what its peers' have tells on its rank",
    ),
    Mutant(
        "edges-outlasting-first",
        _EDGES,
        "[np.isin(self.picture.rank, inside)].max(initial=0)",
        "[np.isin(self.picture.rank, inside)].min(initial=0)",
        "for all who wait for a rank that finished, the one speaks that was heard of the least",
    ),
    Mutant(
        "edges-moved-unit",
        _EDGES,
        "as_of - moved_at < _MOVED_LATELY_S * 1e9",
        "as_of - moved_at < _MOVED_LATELY_S * 1e6",
        "a rank that moved a second ago is said to stand still",
    ),
    # -- whom to name --------------------------------------------------------------------------
    Mutant(
        "blame-half-majority",
        Module("frd/engine/hangs/disagreements.py", _CAUSES),
        "return 2 * sizes[0] > sum(sizes)",
        "return 2 * sizes[0] >= sum(sizes)",
        "one half of the members is a majority over the other",
    ),
    Mutant(
        "blame-absence-unit",
        _BLAME,
        "(as_of - began.at) / 1e9",
        "(as_of - began.at) / 1e6",
        "milliseconds of absence are held against a threshold in seconds",
    ),
    Mutant(
        "edges-late-victim",
        _EDGES,
        "if head.since <= 0 or gone_at <= ripe_at or",
        "if head.since <= 0 or gone_at > ripe_at or",
        "who went before anything hung is followed to what it was in",
    ),
    Mutant(
        "waits-forgotten-waits",
        _WAITS,
        "(self._enqueued > self._completed) & ~self._forgotten",
        "(self._enqueued > self._completed)",
        "a rank waits for ever in what its agent told last",
    ),
    Mutant(
        "waits-forgotten-absent",
        _WAITS,
        "hidden=rank[absent & self._hidden[rows] | lost],",
        "hidden=rank[absent & self._hidden[rows]],",
        "a rank that may have come is absent",
    ),
    Mutant(
        "arrivals-other-guess",
        _ARRIVALS,
        "return known & (closed.first_created >= self.since[group])",
        "return known",
        "times of one clock under two guesses are compared",
    ),
    Mutant(
        "blame-one-witness",
        _BLAME,
        "confirmed = len(witnesses) > 1 or",
        "confirmed = len(witnesses) > 0 or",
        "one agent alone convicts a rank of another",
    ),
    Mutant(
        "blame-just-out",
        _BLAME,
        " and rested_s >= threshold_s",
        "",
        "a rank that came out of something else a moment ago is stuck for sure",
    ),
    Mutant(
        "blame-most-stuck",
        _BLAME,
        "confirmed and len(stuck) <= len(ahead)",
        "confirmed and len(stuck) >= len(ahead)",
        "a majority that is left behind is named with more confidence than a minority",
    ),
    Mutant(
        "blame-silence-proven",
        _BLAME,
        "if not any(word in detail.lower() for word in _STOPPED):",
        "if any(word in detail.lower() for word in _STOPPED):",
        "a recorder that does not answer is proof, a stopped process is not",
    ),
    Mutant(
        "edges-device-all",
        _EDGES,
        "if r in unstarted and not self._moved_lately(r)",
        "if not self._moved_lately(r)",
        "ranks whose device has started the op are named with those whose device has not",
    ),
    # -- findings ------------------------------------------------------------------------------
    Mutant(
        "incident-room",
        _INCIDENT,
        "                room -= 1\n",
        "",
        "a look opens as many findings as it likes",
    ),
    Mutant(
        "incident-confirm-latest",
        _INCIDENT,
        "first = min(unconfirmed.get(key, now) for key in keys)",
        "first = max(unconfirmed.get(key, now) for key in keys)",
        "a verdict that grows is never confirmed",
    ),
    Mutant(
        "incident-unconfirmed-kept",
        _INCIDENT,
        "        self._unconfirmed = {}\n        for one in pairs",
        "        self._unconfirmed = dict(unconfirmed)\n        for one in pairs",
        "a verdict that came and went is confirmed by one of long ago",
    ),
    Mutant(
        "incident-fell-apart",
        _INCIDENT,
        "                and not gone & {*claim.named, *claim.finding.victims}"
        "  # it did not fall apart\n",
        "",
        "a stall whose ranks have died is closed as if the job moved on",
    ),
    Mutant(
        "incident-blind-close",
        _INCIDENT,
        "                and claim.is_reported(picture)\n",
        "",
        "a finding is closed because nobody tells of its ranks any more",
    ),
    # -- how jobs end --------------------------------------------------------------------------
    Mutant(
        "claim-history",
        _CLAIM,
        "        if self.finding.ended_by:\n            return False\n        if not self.bare:",
        "        if not self.bare:",
        "who is killed after a hang began becomes its cause",
    ),
    Mutant(
        "claim-certain",
        _CLAIM,
        "return stood and compose.surest(seen) > compose.surest(self.bare)",
        "return stood and compose.surest(seen) >= compose.surest(self.bare)",
        "what was certain is corrected",
    ),
    Mutant(
        "claim-later-cause",
        _CLAIM,
        "[s for s in told if not compose.began_after(picture, s, opened_at)]",
        "told",
        "a cause may begin after its finding",
    ),
    Mutant(
        "endings-stop-ignored",
        _ENDINGS,
        "if stop.is_interrupt or (other.is_clean and not has_reacted):",
        "if other.is_clean and not has_reacted:",
        "what a rank raises while Ctrl-C ends it is taken for a crash",
    ),
    Mutant(
        "endings-majority",
        _ENDINGS,
        "    rare = [one for one in early if one.way not in common]",
        "    rare = list(early)",
        "the end of a job that most ranks share is a lost rank",
    ),
    Mutant(
        "endings-patience",
        _ENDINGS,
        "AlignedNs(stops[0].at + round(STOP_TAKES_S * 1e9))",
        "AlignedNs(stops[0].at + round(1e9))",
        "ranks that stop before others have saved their checkpoint are lost",
    ),
    Mutant(
        "exits-untold",
        _EXITS,
        "        and 0 < picture.state_since[row] <= picture.as_of[row]\n",
        "",
        "a rank that finished is held to have left early although nobody knows how far it came",
    ),
    # -- who is late ---------------------------------------------------------------------------
    Mutant(
        "straggler-excuses-itself",
        _STRAGGLER,
        "            others &= waits.culprit != itself\n",
        "            others &= waits.level >= 0\n",
        "a rank is excused by those who waited for it elsewhere",
    ),
    Mutant(
        "straggler-one-rival",
        _STRAGGLER,
        "often = all(k >= TIMES",
        "often = any(k >= TIMES",
        "a node's count is held against the easiest of its rivals only",
    ),
    Mutant(
        "straggler-bad-minute",
        _STRAGGLER,
        "spread >= MOST_BUCKETS and",
        "spread >= 1 and",
        "one bad minute makes a straggler",
    ),
    Mutant(
        "straggler-above",
        _STRAGGLER,
        "return by_level[::-1].cumsum()[::-1]",
        "return by_level.cumsum()",
        "sums are of a level and below, not above",
    ),
    Mutant(
        "straggler-dark",
        _STRAGGLER,
        "if held_up or roll.is_dark(group):",
        "if held_up:",
        "whom a group of silent members may have held up is blamed all the same",
    ),
    Mutant(
        "straggler-whole-node",
        _STRAGGLER,
        "and size > 1 and late == size:",
        "and size > 1 and late:",
        "one slow rank makes its node slow",
    ),
    Mutant(
        "straggler-excused-by-all",
        _STRAGGLER,
        "if group == late.group or np.isin(kept_waiting, roll.members(group)).all():",
        "if group == late.group:",
        "those who waited together excuse each other",
    ),
    Mutant(
        "arrivals-clock-bound",
        _ARRIVALS,
        "    least = bound + FLOOR_NS\n",
        "    least = np.full_like(bound, FLOOR_NS)\n",
        "nodes are charged for less than their clocks may be off",
    ),
    Mutant(
        "arrivals-still-busy",
        _ARRIVALS,
        "alone = last - np.maximum(second, busy)",
        "alone = last - second",
        "a rank is charged for time in which the collective before still ran",
    ),
    Mutant(
        "arrivals-contradiction-sign",
        _ARRIVALS,
        "return self.slack_ns < -(self.early_uncertainty_ns + self.late_uncertainty_ns)",
        "return self.slack_ns < self.early_uncertainty_ns + self.late_uncertainty_ns",
        "clocks contradict each other when they are within what they may be off",
    ),
    Mutant(
        "arrivals-hint-sign",
        _ARRIVALS,
        "return -(self.slack_ns + self.late_uncertainty_ns)",
        "return -(self.slack_ns - self.late_uncertainty_ns)",
        "what the other clock may be off tightens a bound instead of loosening it",
    ),
    Mutant(
        "arrivals-largest-bound",
        _ARRIVALS,
        "bound[layout.groups] = np.maximum.reduceat(uncertainty, layout.starts)",
        "bound[layout.groups] = np.minimum.reduceat(uncertainty, layout.starts)",
        "a group's arrivals are compared by its best clock",
    ),
    # -- pauses and severity -----------------------------------------------------------------------
    Mutant(
        "pauses-of-the-end",
        _COLLECTIVES,
        "[wait for wait in tail.waits if wait.end <= self._went_on_at]",
        "list(tail.waits)",
        "a wait is kept for the next run although the job did not go on after it",
    ),
    Mutant(
        "pauses-raised-too-early",
        _COLLECTIVES,
        "is_raised = 0 < self._raised_at <= self._went_on_at",
        "is_raised = 0 < self._raised_at",
        "a job is told to have learned before it has gone on",
    ),
    Mutant(
        "pauses-counted-twice",
        _PAUSES,
        "if found and wait.start <= found[-1].end:",
        "if found and wait.start < found[-1].start:",
        "one wait of several collectives, or told by two agents, counts as several",
    ),
    Mutant(
        "pauses-one-bad-hour",
        _PAUSES,
        "max((length for length in lengths if length <= passing), default=0)",
        "max(lengths, default=0)",
        "an accident that happened once hides hangs for hours",
    ),
    Mutant(
        "pauses-forgotten-overnight",
        _PAUSES,
        "if now - max(w.end, self._since) <= MEMORY_NS",
        "if now - w.end <= MEMORY_NS",
        "what a job learned yesterday does not count today",
    ),
    Mutant(
        "severity-unseen",
        _CLAIM,
        "if self.restored_at is not None or severity in (",
        "if severity in (",
        "what may have ended while the service was down becomes critical",
    ),
)
