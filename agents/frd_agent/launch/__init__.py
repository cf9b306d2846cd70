"""Records of started commands, and the checks of the agent and `frd doctor` that use them.

`command_line` reads a command, `commands` records in the run directory which commands were started
there and which of their processes run torch without the tap, of which the agent warns, `runs`
numbers the runs of a job, `checks` is `frd doctor` and `frd-agent exec --check`.
"""
