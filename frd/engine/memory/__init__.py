"""Memory over time: which series rise, who rose first, and what is said about it.

`memory` is the whole as the engine sees it. Samples wait in `inbox` until a tick; `bins`, `series`
and `trend` tell, over all series at once, what is usual and what rises; `rise`, `cause`,
`incident`, `incidents` and `leaks` make verdicts of the few that do; `watch` and `texts` turn those
into findings.
"""

from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.verdict import Attribution, MemoryRise, MemoryVerdict

__all__ = ["Attribution", "Memory", "MemoryRise", "MemoryVerdict"]
