"""The cost of failing daemons and ranks, and of cancels, compared with Slurm and torchrun."""
