"""frd-agent: watches the ranks of one node and reports to the service.

Entry points: `cli` (`frd-agent run` and `exec`), `agent.Agent`, `phase`, which training programs
call, and `tap`, which runs inside the training process: one file, standard library only. Packages:
`ranks` (processes and their files), `recorder` (Flight Recorder dumps to transitions), `uplink`
(streams to the service), `memory`, `launch` (`exec` and checks).
"""

from frd_agent.phases import phase

__all__ = ["phase"]
