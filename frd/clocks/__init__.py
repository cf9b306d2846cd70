"""The clocks of one host, for the agent and the service: no messages, no other host.

Entry point: `wall_clock` (stamps of the wall clock as raw times).
"""
