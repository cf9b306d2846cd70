"""GPU memory from the NVIDIA driver: devices, their processes, and which rank each process is."""
