"""Every rise of memory in a recording, alarming or not: which rank's memory rose first.

Entry point: `rises.find_rises`. `excursions` walks over one series, `series` makes rises of a rank
of them. `frd.engine.memory` compares ranks (`decisions`) and says what was decided (`report`).
"""
