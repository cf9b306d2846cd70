"""The builders of test worlds: what a test needs around the thing that it tests.

- `observe`: entries, watermarks and P2P ops for an attempt of the engine, by ranges; `attempt`: one
  attempt at given seconds; `job`, `race`: scripted jobs under a real engine; `scene`: a snapshot.
- `messages`: what agents send, by ranges; `sessions`: agent streams into the service without I/O;
  `evaluated`: a job whose findings are evaluated and stored; `views`, `http_api`: what is shown.
- `memory`: memory curves, samplers, and the series of a job; `nvml`: a scripted driver.
- `clocks`: hosts whose clocks drift, step and stop, and networks between them.
- `streams`: agent streams into a real service process; `collector`: a service for a real agent;
  `http_service`: a scripted HTTP API for the commands.
- `dump_files`, `telemetry_files`, `traces`: files that ranks and trackers leave.
- `daemons`, `proxy`, `prometheus`, `webhook`, `certs`: what tests with real processes need.
"""
