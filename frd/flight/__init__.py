"""Flight Recorder dumps of every version and backend, in the terms of `frd.model`.

Knows PyTorch's formats and nothing of ranks, clocks or findings: a dump does not say whose it is.

Entry points: `parse` and `load_dump` (bytes to `Dump`), `columns` (a dump as columns), `progress`
(what the columns say: states, collectives, watermarks, sends in flight; for agent and offline).
"""

from frd.flight.decode import MAX_BYTES, parse
from frd.flight.entry import Dump, Entry, Frame, Status
from frd.flight.load import load_dump
from frd.flight.names import Name, coalesced, judges, parse_profiling_name
from frd.flight.stacks.text import user_frames_of
from frd.flight.write import Membership, write_pickle

__all__ = [
    "MAX_BYTES",
    "Dump",
    "Entry",
    "Frame",
    "Membership",
    "Name",
    "Status",
    "coalesced",
    "judges",
    "load_dump",
    "parse",
    "parse_profiling_name",
    "user_frames_of",
    "write_pickle",
]
