"""Faults in what the service does with streams, and in what it keeps on disk."""

from __future__ import annotations

from tests.mutants.mutant import Module, Mutant

_STREAMS = (
    "tests/unit/test_session.py",
    "tests/unit/test_session_runs.py",
    "tests/unit/test_wire_release.py",
)
_RUNS = Module("frd/service/ingest/job_runs.py", ("tests/unit/test_runs.py", *_STREAMS))
_SESSION = Module("frd/service/ingest/session.py", (*_STREAMS, "tests/unit/test_clocks.py"))
_LEDGER = Module("frd/service/ingest/revisions.py", _STREAMS)
_OWNERS = Module("frd/service/ingest/rank_owners.py", _STREAMS)
_MARKS = Module(
    "frd/service/ingest/watermark_buffer.py", ("tests/property/test_marks.py", *_STREAMS)
)
_FINDINGS = Module(
    "frd/store/findings.py", ("tests/unit/test_findings_store.py", "tests/unit/test_evaluator.py")
)
_WATCHING = Module("frd/service/http/watching_json.py", ("tests/unit/test_watching.py",))
_DISMISSED = Module("frd/engine/evaluation.py", ("tests/unit/test_dismiss.py",))
_REPLAYED = Module("frd/service/journal/replay.py", ("tests/unit/test_dismiss.py",))
_NOTICES = Module("frd/service/findings/notices.py", ("tests/unit/test_notify.py",))
_NOTIFIER = Module("frd/service/findings/notifier.py", ("tests/unit/test_notify.py",))
_DUMPS = Module("frd/store/dumps.py", ("tests/unit/test_dumps.py", "tests/unit/test_http.py"))

MUTANTS = (
    Mutant(
        "notices-closing-to-all",
        _NOTICES,
        "            return notice.finding.id in self._told\n",
        "            return True\n",
        "a target is sent the closing of a finding that it never heard of",
    ),
    Mutant(
        "notifier-redirect",
        _NOTIFIER,
        "urllib.request.ProxyHandler(proxies), _StaysPut()",
        "urllib.request.ProxyHandler(proxies)",
        "a redirect sends a finding to another host",
    ),
    # -- streams -------------------------------------------------------------------------------
    Mutant(
        "session-no-dedup",
        _SESSION,
        "            batch = _after(batch, progress.applied)\n",
        "            pass\n",
        "rows that are sent again are counted again",
    ),
    Mutant(
        "session-applied-back",
        _SESSION,
        "progress.applied = max(progress.applied, last)",
        "progress.applied = last",
        "an old batch that is sent again takes back what has been applied since",
    ),
    Mutant(
        "session-lost-ack",
        _SESSION,
        "        if numbered:\n            progress.applied = max(",
        "        if numbered and len(batch):\n            progress.applied = max(",
        "a batch of which all is known is not acknowledged, and comes for ever",
    ),
    Mutant(
        "session-stale-uncertainty",
        _SESSION,
        "        self._uncertainty_ns = claim_ns(alignment)\n        for handles",
        "        for handles",
        "the engine goes on with how good the clock was when the stream came",
    ),
    Mutant(
        "session-future",
        _SESSION,
        "return np.minimum(self.alignment.to_aligned(node_ns), now)",
        "return np.asarray(self.alignment.to_aligned(node_ns))",
        "what a node's clock tells of the future is believed",
    ),
    Mutant(
        "session-cut-column",
        _SESSION,
        "created_ns=batch.created_ns[cut:],",
        "created_ns=batch.created_ns[: len(batch) - cut],",
        "one column of a batch that is cut loses its end instead of its beginning",
    ),
    Mutant(
        "session-half-cache",
        _SESSION,
        "if rank is columns.rank and group is columns.group:",
        "if rank is columns.rank or len(group) == len(columns.group):",
        "watermarks of other ranks and groups are taken for those of the last message",
    ),
    Mutant(
        "ledger-no-replay",
        _LEDGER,
        "known = Progress(session, replay=known is not None)",
        "known = Progress(session)",
        "another agent that tells the same again is counted twice",
    ),
    Mutant(
        "ledger-oldest-session",
        _LEDGER,
        "known = self._sessions.pop(key, None)",
        "known = self._sessions.get(key)",
        "the session that goes is the one that came first, though it is here still",
    ),
    Mutant(
        "ledger-new-number",
        _LEDGER,
        "self._sessions[key] = next(self._numbers) if known is None else known",
        "self._sessions[key] = next(self._numbers) if not known else known",
        "number 0 is taken for none, so the first session gets another one each time",
    ),
    Mutant(
        "owners-release-all",
        _OWNERS,
        "if self._owners.get((rank.key, rank.info.rank)) == (session, index)",
        "if (rank.key, rank.info.rank) in self._owners",
        "an old stream that ends late takes the ranks of the new one along",
    ),
    Mutant(
        "owners-both-processes-count",
        _OWNERS,
        "                    before[0].supersede(before[1])\n",
        "                    pass\n",
        "two live processes of one rank, from an agent that reports no run, end its stream",
    ),
    Mutant(
        "runs-never-clash",
        _RUNS,
        "    return mine.is_live(now) and theirs.is_live(now)\n",
        "    return False\n",
        "two running jobs of one name are both listened to",
    ),
    Mutant(
        "runs-last-come-first-served",
        _RUNS,
        "for run in sorted(live, key=lambda run: run.order):",
        "for run in sorted(live, key=lambda run: -run.order):",
        "a second job of the same name takes the place of the one that is watched",
    ),
    Mutant(
        "runs-mixed-up",
        _RUNS,
        "        return bool(before) and not stay\n",
        "        return False\n",
        "a run that takes the place of another one goes on where that one stood",
    ),
    Mutant(
        "owners-claim-index",
        _OWNERS,
        "self._owners[rank.key, rank.info.rank] = (session, index)",
        "self._owners[rank.key, rank.info.rank] = (session, index % 2)",
        "ranks that were declared later are asked for by the wrong index",
    ),
    Mutant(
        "marks-twice-in-a-call",
        _MARKS,
        "if (last[pair] == order).all() else",
        "if (last[pair] >= order).all() else",
        "a row that two messages name is applied at once, where only one of them counts",
    ),
    Mutant(
        "marks-unknown-time",
        _MARKS,
        "    aligned[node == 0] = 0\n",
        "",
        "a time that is not known is aligned like any other",
    ),
    Mutant(
        "marks-message-of",
        _MARKS,
        'np.searchsorted(ends, np.flatnonzero(beside), "right")',
        'np.searchsorted(ends, np.flatnonzero(beside), "left")',
        "the first row of a message is taken for one of the message before",
    ),
    Mutant(
        "marks-kept",
        _MARKS,
        "batches, self._batches = self._batches, {}",
        "batches = self._batches",
        "what was applied is applied again and again",
    ),
    # -- findings ------------------------------------------------------------------------------
    Mutant(
        "findings-unsynced-close",
        _FINDINGS,
        "event.change is not Change.UPDATED for event in events",
        "event.change is Change.OPENED for event in events",
        "a closing that people have seen is gone after a power cut",
    ),
    Mutant(
        "findings-prune-newest",
        _FINDINGS,
        '" ORDER BY closed_ns LIMIT max(',
        '" ORDER BY closed_ns DESC LIMIT max(',
        "of too many findings the newest are forgotten",
    ),
    Mutant(
        "findings-prune-open",
        _FINDINGS,
        "DELETE FROM findings WHERE state = 'closed' AND closed_ns < ?",
        "DELETE FROM findings WHERE opened_ns < ?",
        "an open finding is forgotten because it is old",
    ),
    Mutant(
        "findings-page-tie",
        _FINDINGS,
        "(opened_ns, id) > (?1, ?2)",
        "(opened_ns > ?1 OR ?1 = 0 AND id > ?2)",
        "of findings that opened together a page shows one and the next none",
    ),
    Mutant(
        "findings-until",
        _FINDINGS,
        "(?4 IS NULL OR opened_ns < ?4)",
        "(?4 IS NULL OR opened_ns <= ?4)",
        "a finding on the border of two spans is in both",
    ),
    # -- dumps ---------------------------------------------------------------------------------
    Mutant(
        "dumps-read-and-gone",
        _DUMPS,
        "            if dump_id not in self._reading:\n",
        "            if dump_id:\n",
        "a dump is deleted while somebody downloads it",
    ),
    Mutant(
        "dumps-unfinished-part",
        _DUMPS,
        "        if last:\n            self._incomplete.discard(path)\n",
        "        self._incomplete.discard(path)\n",
        "half a dump of a rank is kept for a whole one",
    ),
    Mutant(
        "dumps-counted-twice",
        _DUMPS,
        "            self._unfinished_bytes -= size\n            self._sizes[dump_id] = size\n",
        "            self._sizes[dump_id] = size\n",
        "what is finished still counts as being taken",
    ),
    Mutant(
        "dumps-one-too-many",
        _DUMPS,
        "            self._make_room(1)\n",
        "            self._make_room(0)\n",
        "there is one dump more than the bound says",
    ),
    Mutant(
        "dumps-abandoned-bytes",
        _DUMPS,
        "            self._release(self._bytes)\n",
        "            self._bytes = 0\n",
        "the bytes of a dump that was given up are never free again",
    ),
    # -- what is watched, and closing by hand ---------------------------------------------------
    Mutant(
        "watching-gone-is-watched",
        _WATCHING,
        "for node in nodes if node.reporting for rank",
        "for node in nodes for rank",
        "ranks whose agent is gone count as watched",
    ),
    Mutant(
        "watching-gone-is-fine",
        _WATCHING,
        "    if gone:\n",
        "    if gone and silent:\n",
        "no findings under a killed agent reads as if all were well",
    ),
    Mutant(
        "watching-finished-are-missed",
        _WATCHING,
        "_OVER: Final = frozenset({RankState.EXITED, RankState.FINISHED})",
        "_OVER: Final = frozenset({RankState.EXITED})",
        "an agent that leaves after its ranks have finished makes frd blind",
    ),
    Mutant(
        "dismissed-comes-back",
        _DISMISSED,
        "            if event.finding.id not in self._dismissed:\n",
        "            if True:\n",
        "what becomes of a finding that was closed by hand is told after its end",
    ),
    Mutant(
        "dismissed-stays-open",
        _DISMISSED,
        "        return [finding for finding in found if finding.id not in self._dismissed]\n",
        "        return found\n",
        "a finding that was closed by hand is still shown as open, and alerts",
    ),
    Mutant(
        "replay-dismisses-nothing",
        _REPLAYED,
        "        self._keep(closing)\n",
        "        pass\n",
        "a replay leaves open what was closed by hand",
    ),
)
