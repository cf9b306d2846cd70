"""The central service: an asyncio shell around the engine.

Entry point: `app.App` (start, stop, addresses). `state` is the immutable state that HTTP and
metrics see, `view` everything that HTTP may ask. Packages: `ingest` and `clocks` (streams of
agents), `findings`, `journal`, `http`, `metrics`, `access`.
"""
