"""Hardware failures from the kernel's log and NVML, each event reported once.

The daemon runs the monitor and posts its events to the owner of the state. The package judges a
line or a counter alone; what an event means for jobs is for the coordinator to decide. It never
changes a device.
"""
