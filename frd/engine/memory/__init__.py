"""Memory over time: which series rise, which rank rose first, and the texts about it.

Entry point: `attempt_memory.Memory`. Samples wait in `inbox` until a tick. `series`, `baseline` and
`trend` compute for all series together what is normal and what rises. `onset`, `incident`,
`incidents` and `leaks` decide which of the few that rise are incidents, and report them.
`detector` and `text` turn reports into claims.
"""

from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.incident_report import Attribution, IncidentReport, MemoryRise

__all__ = ["Attribution", "IncidentReport", "Memory", "MemoryRise"]
