"""What a suspect process is blocked in: the file, the lock, the loader worker, the peer.

From the raw files of /proc, never by ptrace, and only of ranks about which the service asks.
`reading` reads one subject of /proc a module; `targets` finds what a blocked call acts on;
`tracking` counts for how long that has been the same; `wait_chain` follows the waits to their end;
`inspector` runs it on a thread.

Entry points: `inspector.Inspector`, and `sampler.RankSampler` for one rank without a thread.
"""
