"""Scheduling: choice of the next job, its nodes, GPUs and network, and the reasons for waiting."""
