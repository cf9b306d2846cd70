"""Traces for ui.perfetto.dev: a writer that knows nothing of ranks, and texts for what has them.

Entry points: `writer.TraceWriter`, `texts.rank_title`, `texts.finding_slice`.
"""
