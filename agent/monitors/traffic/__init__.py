"""Evidence of a task's traffic: port counters and NCCL's log lines."""
