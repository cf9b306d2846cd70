"""Flight Recorder dumps of every version and backend, in the terms of `frd.model`.

Knows PyTorch's formats and nothing of ranks, clocks or findings: a dump does not say whose it is.
"""

from frd.flight.entry import Dump, Entry, Frame, Status
from frd.flight.load import load_dump
from frd.flight.parse import MAX_BYTES, parse

__all__ = ["MAX_BYTES", "Dump", "Entry", "Frame", "Status", "load_dump", "parse"]
