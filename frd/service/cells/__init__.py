"""Cells: all that the service knows about some of its jobs, apart from the process around it.

Entry points: `cell.Cell` (engine, sessions, log and findings of one cell) and `cells.Cells` (all
cells of this process, as one for HTTP and metrics).
"""
