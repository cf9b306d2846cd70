"""The DFTracer trace that an inspected rank writes, as a second witness of its wait.

A line of such a trace is written when its call has returned: the trace shows the last call that
ended and never the one that is blocked. The trace is found by the descriptors of the rank, and read
through them, on a helper thread with a deadline, only while it grows, and never if the rank is
stuck in the file system that the trace is on.

`followed` finds traces, decides whether one may be read, reads it and turns bytes into records;
`history` keeps what they say; `witness` adds that to a rank's report.

Entry points: `witness.Traces`, one for all ranks, and `witness.Witness`, one for each.
"""
