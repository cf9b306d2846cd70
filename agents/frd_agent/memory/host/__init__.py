"""Host memory of ranks: processes, cgroups, and kills by the kernel's out-of-memory killer."""
