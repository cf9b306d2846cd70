"""Stacks of a rank and of its child processes, and their processor time.

Entry points: `reader.StackReader` (the rank), `children.child_stacks`, `children.Meter`.
"""
