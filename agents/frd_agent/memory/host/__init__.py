"""Host memory of ranks: processes, cgroups, and kills by the kernel's out-of-memory killer.

`node_memory.NodeMemory` reads all ranks of the node as series; `processes` reads one process and
its children, `cgroup` the cgroup that limits it.
"""
