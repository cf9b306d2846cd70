"""Lost ranks: how processes of an attempt ended, and which of them ended first.

Entry points: `exits.exits` (each exit with its time and manner), `lost_ranks.first_lost` (the loss
that they show, if any), `claims` (from a loss to a claim for the tracker). Pure functions of a
snapshot. `frd.engine.hangs` asks for manners of exits; losses know nothing of waiting.
"""
