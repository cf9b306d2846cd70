"""Traces for ui.perfetto.dev: a writer that knows nothing of ranks, and lanes for what overlaps.

Entry points: `writer.TraceWriter`, `lanes.lanes`.
"""
