"""Clock streams: pings of agents come in, and the clock of every node is estimated from them.

Entry points: `pings` (the gRPC handler), `agent_clocks.AgentClocks` (all clocks, and
what of them is in use), `view` (for users), `real_time` (the service's own clock).
"""
