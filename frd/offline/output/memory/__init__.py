"""Recorded memory as files: a merged timeline of samples, counters in Perfetto, and a picture.

Draws and writes a `MemoryAnalysis`; finds nothing. Times are aligned: offsets of clocks that a
folder of dumps has are added where there is one.

Entry points: `export.export_memory`, `tracks.add_memory`, `plot.write_plot`.
"""
