"""The causal walk over memory samples: what is usual of each series, and where it leaves that.

Samples wait in `inbox` until a tick. `series` applies them, as columns over all series: `levels`
has what is usual of each, `excursions` follows those that left it, `trend` finds leaks, `recent`
keeps values for people. What comes out is a `rank_rise.RankRise` for each excursion.
"""
