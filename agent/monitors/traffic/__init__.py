"""Evidence of what carries the traffic of a task: port counters and the lines that NCCL logs."""
