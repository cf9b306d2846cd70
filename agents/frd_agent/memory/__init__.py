"""Memory of this node's ranks: sampled, arranged in columns, kept until a stream takes it.

Entry points: `watch.MemoryWatch`, which samples; `samples.NodeSamples`, which keeps.
"""
