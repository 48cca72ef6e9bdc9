"""A running gang: hangs and their stacks, idle GPUs, traffic, checkpoints."""
