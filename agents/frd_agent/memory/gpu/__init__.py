"""GPU memory from the NVIDIA driver: devices, their processes, and which rank each process is.

`nvml.Nvml` calls the driver, `nvml.Devices` does so on a thread that may hang without holding up
anything else, `gpus.Gpus` turns what it found into series of ranks.
"""
