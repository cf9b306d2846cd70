"""Memory over time: which series rise, which rank rose first, and the texts about it.

Entry point: `attempt_memory.Memory`. Samples wait in `inbox` until a tick. `series`, `baseline` and
`trend` compute for all series together what is normal and what rises. `onset`, `incident`,
`incidents` and `leaks` make verdicts about the few that rise. `detector` and `text` turn verdicts
into claims.
"""

from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.verdict import Attribution, MemoryRise, MemoryVerdict

__all__ = ["Attribution", "Memory", "MemoryRise", "MemoryVerdict"]
