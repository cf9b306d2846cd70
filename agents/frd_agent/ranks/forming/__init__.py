"""Processes that are going to be ranks: a long initialization, seen from the node.

Entry point: `registry.Forming`, the forming ranks of a run directory. `forming_rank` is
one process that is reported as a rank before it has a process group; it reads what taps report and
trusts none of it, and says where a rank with groups is while its counters rest.
"""
