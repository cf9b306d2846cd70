"""Ranks that make their peers wait again and again.

`lateness` counts waits by group and late rank, `detection` decides by statistics over the counts,
`detector` reports the result. A rank that another rank delays is not a straggler.
"""
