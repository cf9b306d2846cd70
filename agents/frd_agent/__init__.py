"""frd-agent: watches the ranks of one node and reports to the service.

Entry points: `cli` (`frd-agent run` and `exec`), `agent.Agent`, and `tap`, which runs inside the
training process: one file, standard library only. Packages: `ranks` (processes and their files),
`recorder` (Flight Recorder dumps to transitions), `uplink` (streams to the service), `memory`,
`launch` (`exec` and checks).
"""
