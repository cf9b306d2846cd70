"""Agent streams: from gRPC bytes to calls on the engine.

`collector` has the gRPC handler, `streams` all streams without I/O, `session` one stream without
I/O, `declarations` what it has declared, and `shared` what sessions share: the engine,
`buffers`, `revisions`, and `job_runs`, which decides which runs of a job are watched.
`nodes` lists the agents.
"""
