"""The verdict on a trace: matching, clocks and the same first-cause analysis as the live service.

Entry point: `analyze.analyze`. Columns in, findings and tables out; nothing here opens files or
prints.
"""
