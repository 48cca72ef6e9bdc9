"""What changes on a node while jobs run: disks, GPUs, the fabric, hardware, hangs, traffic.

The daemon starts each monitor. A monitor reads and posts what has changed to the owner of the
state; it never decides what that means for a job.
"""
