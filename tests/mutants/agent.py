"""Faults in what the agent reads off recorders, keeps and sends."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_OUTBOX = Module(
    "agents/frd_agent/uplink/outbox.py",
    (
        "tests/unit/test_outbox.py",
        "tests/property/test_outbox.py",
        "tests/unit/test_dispatch.py",
    ),
)
_READING = (
    "tests/unit/test_transitions.py",
    "tests/property/test_transitions.py",
    "tests/unit/test_standing.py",
)
_TRANSITIONS = Module("agents/frd_agent/recorder/transitions.py", _READING)
_PROGRESS = Module("agents/frd_agent/recorder/progress.py", _READING)
_STANDING = Module("agents/frd_agent/recorder/standing.py", ("tests/unit/test_standing.py",))
_TELLING = (
    "tests/unit/test_agent_board.py",
    "tests/unit/test_dispatch.py",
    "tests/unit/test_outbox.py",
    "tests/unit/test_agent_clock.py",
)
_DISPATCH = Module("agents/frd_agent/uplink/dispatch.py", _TELLING)
_BOARD = Module("agents/frd_agent/uplink/current_state.py", _TELLING)
_DICTIONARY = Module("agents/frd_agent/uplink/dictionary.py", _TELLING)
_PROCESS = Module("agents/frd_agent/ranks/process.py", ("tests/unit/test_process.py",))
_EXITS = Module("agents/frd_agent/ranks/exits.py", ("tests/unit/test_exits.py",))
_TAP = Module(
    "agents/frd_agent/tap.py",
    (
        "tests/unit/test_tap_start.py",
        "tests/unit/test_tap_world.py",
        "tests/unit/test_tap_names.py",
    ),
)
_RUNS = Module("agents/frd_agent/launch/runs.py", ("tests/unit/test_launch.py",))

MUTANTS = (
    # -- how a process ended -------------------------------------------------------------------
    Mutant(
        "exit-hidden-status-believed",
        _PROCESS,
        "self._tells_status = stat.start_code > _START_CODE_HIDDEN",
        "self._tells_status = stat.start_code > 0",
        "an agent without permission takes every killed rank for one that exited with status 0",
    ),
    Mutant(
        "exit-passed-on-signal-ignored",
        _EXITS,
        "signal=killed_by or _passed_on(status)",
        "signal=killed_by",
        "a rank whose handler ends it with 143 has nothing to do with SIGTERM",
    ),
    Mutant(
        "exit-printed-exception-convicts",
        _EXITS,
        "    if status == 0:\n",
        "    if status == 0 and not exception:\n",
        "a program that survived an exception and left with 0 counts as crashed",
    ),
    # -- the tap and exec ----------------------------------------------------------------------
    Mutant(
        "tap-in-loaders",
        _TAP,
        "if of_loader or _installed_pid == os.getpid():",
        "if _installed_pid == os.getpid():",
        "every worker of a data loader gets a thread that it has no use for",
    ),
    Mutant(
        "tap-inherits-ranks",
        _TAP,
        "found = ranks is not None and ranks is not inherited",
        "found = ranks is not None",
        "a forked helper of a rank is published as that rank",
    ),
    Mutant(
        "tap-drops-the-users-setting",
        _TAP,
        "if present in environ and environ.get(old) == environ[present]:",
        "if old in environ:",
        "a ring size that the user set under the old name is lost",
    ),
    Mutant(
        "run-of-a-living-job",
        _RUNS,
        "if not is_alive:",
        "if True:",
        "two runs of one script at the same time have one name",
    ),
    # -- the outbox ----------------------------------------------------------------------------
    Mutant(
        "outbox-no-resend",
        _OUTBOX,
        "queue.sent = queue.acked\n\n    def first_joined",
        "queue.sent = queue.recorded\n\n    def first_joined",
        "a new stream is not given what the last one swallowed",
    ),
    Mutant(
        "outbox-ack-one-more",
        _OUTBOX,
        "rest = _after(batch, queue.acked)",
        "rest = _after(batch, queue.acked + 1)",
        "an acknowledgement takes one row along that it does not name",
    ),
    Mutant(
        "outbox-newest-dropped",
        _OUTBOX,
        "self._order.appendleft((rank, last))",
        "self._order.append((rank, last))",
        "a batch that was cut is no longer the oldest, and outlives newer ones",
    ),
    Mutant(
        "outbox-drops-miscounted",
        _OUTBOX,
        "self.dropped[rank] = self.dropped.get(rank, 0) + rows",
        "self.dropped[rank] = rows",
        "only the last drop of a rank is told",
    ),
    Mutant(
        "outbox-piece-revision",
        _OUTBOX,
        "first_revision=rows.first_revision + start,",
        "first_revision=rows.first_revision,",
        "the rest of a batch is numbered like its beginning",
    ),
    Mutant(
        "outbox-wrong-column",
        _OUTBOX,
        "started_ns=rows.started_ns[start:stop],",
        "started_ns=rows.created_ns[start:stop],",
        "a part of a batch tells creation times as start times",
    ),
    Mutant(
        "outbox-forgotten-rows",
        _OUTBOX,
        "            self.rows -= sum(len(batch) for batch in queue.batches)\n",
        "            pass\n",
        "ranks that are gone take their share of the room along",
    ),
    Mutant(
        "outbox-joined-last",
        _OUTBOX,
        "first.setdefault(group, seq)",
        "first[group] = seq",
        "of what a rank joined in rows that wait, a later seq counts as the first",
    ),
    # -- rings ---------------------------------------------------------------------------------
    Mutant(
        "transitions-lost-one",
        _TRANSITIONS,
        "lost = max(fresh[0].record_id - self._last_id - 1, 0)",
        "lost = max(fresh[0].record_id - self._last_id, 0)",
        "an entry that was read is counted as overwritten",
    ),
    Mutant(
        "transitions-refilled",
        _TRANSITIONS,
        "and entries[at].time_created_ns != self._last_created_ns",
        "and entries[at].time_created_ns < self._last_created_ns",
        "a recorder that was reset and has filled up again goes on as if it had not been",
    ),
    Mutant(
        "transitions-held",
        _TRANSITIONS,
        "self.taken_at_ns = min(taken_at_ns, entries[left].time_created_ns - 1)",
        "self.taken_at_ns = taken_at_ns",
        "entries too young to be read are claimed not to exist",
    ),
    Mutant(
        "transitions-young-unit",
        _TRANSITIONS,
        "_COALESCES_NS: Final = 20_000_000",
        "_COALESCES_NS: Final = 20_000",
        "the first entry of a coalesced collective is read before the others are written",
    ),
    Mutant(
        "transitions-old-channels",
        _TRANSITIONS,
        "                former.close()\n                self.channels.close(former.group)\n",
        "                former.close()\n",
        "sends of a group that is gone are waited for in the one of the same name",
    ),
    Mutant(
        "transitions-last-part",
        _TRANSITIONS,
        "        item.record_id = entry.record_id\n",
        "",
        "the end of the first entry of a coalesced collective is taken for the end of all",
    ),
    Mutant(
        "transitions-active-only",
        _TRANSITIONS,
        "if self._last_id >= 0 and not partial:",
        "if self._last_id >= 0:",
        "what a dump of active entries leaves out is counted as lost",
    ),
    Mutant(
        "progress-held-back",
        _PROGRESS,
        "elif not (item.failed or item.overwritten) or seq > last_done:",
        "elif not (item.failed or item.overwritten):",
        "what failed last is passed over though nothing after it is done",
    ),
    Mutant(
        "progress-started-behind",
        _PROGRESS,
        "return UNKNOWN_SEQ if self.started < 0 else max(self.started, completed)",
        "return self.started",
        "a group completes what its device never started",
    ),
    Mutant(
        "progress-p2p-counter",
        _PROGRESS,
        "return raw is not None and not self.has_p2p and 0 <= item.number <= raw.completed",
        "return raw is not None and 0 <= item.number <= raw.completed",
        "counters that mix sends with collectives end a collective",
    ),
    Mutant(
        "progress-age-of-newest",
        _PROGRESS,
        "head = next(iter(self.open), None)",
        "head = next(reversed(self.open), None)",
        "the newest open collective is told as the oldest",
    ),
    Mutant(
        "standing-latest",
        _STANDING,
        "as_of = until if as_of is None else min(as_of, until)",
        "as_of = until if as_of is None else max(as_of, until)",
        "of two recorders the one read last vouches for the other",
    ),
    Mutant(
        "standing-torn",
        _STANDING,
        "        ring.is_whole\n        and alive <= counters.keys()",
        "        alive <= counters.keys()",
        "a dump that held entries back is taken for the whole truth",
    ),
    Mutant(
        "standing-closed",
        _STANDING,
        "alive = {progress.pg_id for progress in ring.groups if not progress.closed}",
        "alive = {progress.pg_id for progress in ring.groups}",
        "a group that was destroyed keeps its rank from ever standing still",
    ),
    # -- the stream ----------------------------------------------------------------------------
    Mutant(
        "dispatch-no-replay",
        _DISPATCH,
        "self._say_all_again(replay=knows_nothing)",
        "self._say_all_again(replay=False)",
        "a service that restarted is not told of what it once acknowledged",
    ),
    Mutant(
        "dispatch-told-twice",
        _DISPATCH,
        "if seq < waiting.get(group, seq + 1)",
        "if seq <= waiting.get(group, seq + 1)",
        "a collective whose row still waits is replayed as well",
    ),
    Mutant(
        "dispatch-old-replays",
        _DISPATCH,
        "        self._replays.clear()\n",
        "",
        "what the last stream was still to be told goes out on the next one, too",
    ),
    Mutant(
        "dispatch-numbered-replay",
        _DISPATCH,
        "return replace(_rows(batch, keep), first_revision=0)",
        "return _rows(batch, keep)",
        "replayed rows carry revisions, and the service cuts them off as known",
    ),
    Mutant(
        "dispatch-urgent-late",
        _DISPATCH,
        "if event is None and (watermarks_due or self._samples.urgent):",
        "if event is None and watermarks_due:",
        "a jump of memory waits for the next round",
    ),
    Mutant(
        "dispatch-watermarks-first",
        _DISPATCH,
        "self._outbox.next_batch()\n                or self._samples.next_events()",
        "(None if watermarks_due else self._outbox.next_batch())\n"
        "                or self._samples.next_events()",
        "watermarks overtake the rows that they claim to have been told",
    ),
    Mutant(
        "board-as-of-back",
        _BOARD,
        "if at_ns > self._as_of.get(rank, 0):",
        "if at_ns != self._as_of.get(rank, 0):",
        "what was known up to now is known only up to earlier",
    ),
    Mutant(
        "board-rewind-as-of",
        _BOARD,
        "        self._untold_as_of = dict.fromkeys(self._as_of)\n",
        "",
        "a new stream is never told up to when a rank at rest is known",
    ),
    Mutant(
        "board-waits-for-ever",
        _BOARD,
        "(self._waiting.add if marks.head_created_ns else self._waiting.discard)(pair)",
        "self._waiting.add(pair)",
        "whoever waited once is taken to wait still, since 1970",
    ),
    Mutant(
        "board-mixed-attempts",
        _BOARD,
        "pairs = [pair for pair in self._untold_marks if self._attempt_of(pair[0]) == attempt]",
        "pairs = list(self._untold_marks)",
        "one message tells watermarks of two attempts",
    ),
    Mutant(
        "board-forgotten-marks",
        _BOARD,
        "            self._untold_marks.pop(pair, None)\n",
        "",
        "what is untold of a rank outlives the rank",
    ),
    Mutant(
        "dictionary-wrong-index",
        _DICTIONARY,
        "seen_rank=self._ranks.all_of(columns.seen_rank),",
        "seen_rank=columns.seen_rank,",
        "a column goes out in the agent's own numbers, which are mostly the stream's, too",
    ),
    Mutant(
        "dictionary-stale-cache",
        _DICTIONARY,
        "        self._signature_of = {s: i for i, s in self.signatures.items()}\n",
        "",
        "a signature that was forgotten is still handed out by its number",
    ),
    Mutant(
        "dictionary-uncounted-bytes",
        _DICTIONARY,
        "self._signature_bytes += _signature_bytes(signature)",
        "self._signature_bytes = _signature_bytes(signature)",
        "a stream never fills up with shapes",
    ),
    Mutant(
        "dictionary-large-message",
        _DICTIONARY,
        "        room -= size\n",
        "",
        "a message of declarations has no bound in bytes",
    ),
    Mutant(
        "dictionary-two-sizes",
        _DICTIONARY,
        'key = replace(key, job=f"{key.job} (world size {world_size})")',
        "key = replace(key, job=key.job)",
        "two jobs of one name but of different size are one",
    ),
)
