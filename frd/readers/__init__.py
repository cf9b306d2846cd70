"""Files of unknown origin, decoded by processes that may die: limits of memory and of time.

Entry points: `pool.read_all` (many dump files, in parallel), `pool.ReaderProcess` (any function,
for one file after another), `process.limit_memory` and `process.limit_time`. The caller survives
whatever a file does to the process that reads it, and names the file.
"""
