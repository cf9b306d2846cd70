"""Rank processes of this node: which there are, what they publish, how they end, their stacks.

Entry points: `roster.Roster` (all ranks), `rank.Rank` (one), `tap_files` (what the tap
writes), `stacks`.
"""
