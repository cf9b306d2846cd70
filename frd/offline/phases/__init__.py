"""Phases of a program (epoch, forward, eval): when each began and ended on each rank.

Entry points: `answer.PhaseAnswer` says in which phase of a rank something happened, and how sure
that is.
"""
