"""Analysis of a folder of dumps, with no service: the same parser, match rules and engine.

`load` reads folders, `analysis` matches and judges, `memory` does both for files of telemetry, `io`
for traces of I/O, and `output` writes tables, files and timelines. Entry points:
`load.folder.load_dumps`, `analysis.analyze.analyze`, `memory.analyze.load_memory`,
`io.analysis.load_traces`.
"""
