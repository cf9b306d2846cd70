"""Flight Recorder dumps of every version and backend, in the terms of `frd.model`.

Knows PyTorch's formats and nothing of ranks, clocks or findings: a dump does not contain its rank.

Entry points: `decode.parse` (bytes to `Dump`), `trace` (dumps as columns),
`progress` (what the columns say: states, collectives, watermarks, sends in flight; for agent and
offline analysis), `write.write_pickle`.
"""
