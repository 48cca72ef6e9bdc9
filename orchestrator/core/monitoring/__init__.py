"""Monitoring of a running gang: hangs and their stacks, idle GPUs, traffic, checkpoints."""
