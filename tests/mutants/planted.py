"""All planted faults: real mistakes, made by hand, each with a sentence about what was got wrong.

A fault that no test notices is a test that is missing. None of them is equivalent to the code, that
is, each changes something that somebody can see.
"""

from __future__ import annotations

from typing import Final

from tests.mutants import agent, clocks, engine, formats, memory, service
from tests.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *engine.MUTANTS,
    *clocks.MUTANTS,
    *agent.MUTANTS,
    *service.MUTANTS,
    *memory.MUTANTS,
    *formats.MUTANTS,
)
