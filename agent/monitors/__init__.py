"""Monitors of a node while jobs run: disks, GPUs, the fabric, hardware, hangs, traffic.

The daemon starts each monitor. A monitor posts changes to the owner of the state; it never decides
what they mean for a job.
"""
