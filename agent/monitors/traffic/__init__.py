"""Evidence of a task's traffic: port counters and NCCL's log lines.

The daemon keeps the samplers, and `agent.tasks` starts and ends one per task. The package only
reads counters and logs; `muster.fabric` and the coordinator judge them. It never ends a task.
"""
