"""Where people find the process of a rank: its `Address`, and the last lines of its stderr.

Entry points: `read.Addresses`, for the ranks of one agent; `read.Log`, when a log is asked for.
Only /proc and files are read, and nothing is put between a rank and its stderr. Command lines reach
all who may see a finding, so they are `blanked`. Lines of a log are for operators: they go into
dumps, and nowhere else. All of it may be missing.
"""
