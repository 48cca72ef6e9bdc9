"""Hardware failures from the kernel's log and NVML, each event reported once."""
