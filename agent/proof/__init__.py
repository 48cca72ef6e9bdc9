"""What carried a task's traffic: counters and NCCL's lines, read beside the run."""
