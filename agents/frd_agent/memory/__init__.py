"""Memory of this node's ranks: sampled, arranged in columns, kept until a stream takes it."""

from frd_agent.memory.host.cgroup import OomKills
from frd_agent.memory.metrics import memory_metrics
from frd_agent.memory.node_samples import NodeSamples
from frd_agent.memory.samples import Samples
from frd_agent.memory.target import Target
from frd_agent.memory.watch import MemoryView, MemoryWatch

__all__ = [
    "MemoryView",
    "MemoryWatch",
    "NodeSamples",
    "OomKills",
    "Samples",
    "Target",
    "memory_metrics",
]
