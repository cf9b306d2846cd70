"""A cluster of replicas in simulated time: the production's cells, leases and logs on fakes of the
servers, with the simulated job and agents around them.

Entry point: `world.ClusterWorld`. Each replica has a separate event loop (`loop`), so that it can
be killed or stopped like a process.
"""
