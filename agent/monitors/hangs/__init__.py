"""Activity of the ranks of a task: samples of /proc and sockets, stack dumps, NCCL's flight
recorder.

The daemon and `agent.tasks` start it. The coordinator judges; this package only observes. It reads
files of a job as the task's user.
"""
