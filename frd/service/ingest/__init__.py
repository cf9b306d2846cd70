"""Agent streams: from gRPC bytes to calls on the engine.

`collector` owns the gRPC handler, `streams` all streams without I/O, `session` one stream without
I/O, `declarations` what it has declared, `watermark_buffer` the watermarks of all streams. `nodes`
and `job_runs` keep which agents and which runs of a job the service listens to.
"""
