"""Traces of I/O (DFTracer), tied to ranks on the common clock.

`discovery` finds files and cuts them into pieces, `part` reads a piece into sums, `identity` finds
ranks and `evidence` paths, `rank_report` and `analysis` join the parts, `engine` runs all of it
here or on Dask, `starved` says what a first cause was reading, `spans` reads spans for files.

Entry points: `analysis.load_traces`, `starved.with_starved`, `spans.spans_of`.
"""
