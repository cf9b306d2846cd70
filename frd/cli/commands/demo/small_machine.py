"""An agent that takes this machine's memory for smaller than it is: BYTES, then its own arguments.

A rise that threatens a machine of that size harms nothing here.
"""

from __future__ import annotations

import sys
from functools import partial

from frd_agent.cli import main
from frd_agent.memory import watch
from frd_agent.memory.host.node_memory import NodeMemory

if __name__ == "__main__":
    vars(watch)["NodeMemory"] = partial(NodeMemory, machine_bytes=int(sys.argv.pop(1)))
    main()
