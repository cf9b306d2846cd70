"""DFTracer's I/O traces, in all four dialects: v0 (DLIO Profiler), v1, 2.0 and 2.2.

Knows the format and nothing of ranks, clocks or findings: most traces do not contain their rank.
A line is written when its call has returned, so a trace never shows a call that is blocked.

Entry points: `line.parse_line` (one line as an `Event` or `Metadata`; for live traces too),
`reader.BlockReader` (many lines as columns, fast), `inflate.Inflater` (gzip members as they come),
`kinds.kind_of` (what a call is: a read, an open, a fetch).
"""
