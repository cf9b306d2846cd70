"""What one file of /proc shows, as values; each module reads one subject and decides nothing.

No module opens a path of the inspected process. Files that take the lock on its address space are
read by `memory.Helper` only.
"""
