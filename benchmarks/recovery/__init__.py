"""What daemons, ranks and cancels cost when they end: figures beside Slurm and plain torchrun."""
