"""Messages of many streams that wait to be applied to the engine together.

Entry points: `entries.EntryBuffer` and `watermarks.WatermarkBuffer`; `frd.service.ingest.shared`
flushes them in this order.
"""
