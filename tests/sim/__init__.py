"""A whole cluster in one process: a simulated job, and the real agents and service around it."""
