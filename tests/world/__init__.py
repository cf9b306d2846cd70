"""The builders of test worlds: what a test needs around the thing that it tests.

Without I/O, with injected time:

- `messages`: columns and messages of agents, spelt by ranges, scalars and rows; `observe` gives the
  same rows to an `Attempt` of the engine. `attempt.Job`: one attempt, by given seconds.
- `job.Job`, `race.Race`: scripted jobs under a real `Engine`; `scene.Scene`: a `Snapshot` by hand.
- `sessions.Service`, `Stream`: agent streams into the service's sessions; `evaluated`: a job whose
  findings are evaluated and stored; `views`: what the service shows.
- `memory`: memory curves, samplers, series of a job. `clocks`: hosts with faulty clocks, networks.
- `dump_files`, `telemetry_files`, `traces`: files of ranks and trackers.

With sockets or processes:

- `daemons`: the one way to start a process and to end it (`running`), with the commands of service,
  agent and ranks; to wait for a condition (`until`, `async_until`); `watched` starts service, agent
  and job; `findings`, `get` and `metric` read a daemon, `frd` runs the command line.
- `cluster`: a service and agents that a test kills and starts again, around the scripted ranks of
  `training`; `account` compares what they recorded with the journal.
- `puppets`: real gloo ranks that do what a test commands.
- `streams.serving`: a real service process, `peer`: a scripted agent of it. `collector.serving`: a
  scripted service for a real agent, which `collector.agent` starts.
- `http_api`: the real HTTP API over a fixed state; `http_service`: a scripted API for commands, one
  of the servers that `http_server.answering` starts.
- `proxy.Proxy`, `prometheus`, `webhook.Receiver`, `certs.Authority`, `nvml`: a network with faults,
  Prometheus and Alertmanager, a receiver of notifications, certificates, a scripted NVIDIA driver.
"""
