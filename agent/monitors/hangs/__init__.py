"""Whether the ranks of a task move: samples of /proc and sockets, stack dumps, NCCL's flight
recorder.

The coordinator judges; this package only observes, as the user of the task where it reads what a
job wrote.
"""
