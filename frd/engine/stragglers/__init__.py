"""Ranks that make their peers wait again and again.

`frd.engine.matching.lateness` counts late ranks by group; `detection` decides by statistics over
the counts and the `topology`, `detector` claims the result. A rank that another rank delays is not
a straggler.
"""
