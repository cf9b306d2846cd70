"""Ranks that make their peers wait again and again.

`arrivals` finds the late rank of each collective, `lateness` counts by group and late rank,
`detection` decides by statistics over the counts, `detector` reports the result. A rank that
another rank delays is not a straggler.
"""
