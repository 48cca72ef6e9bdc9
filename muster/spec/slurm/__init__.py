"""Slurm batch scripts as jobs, for `muster submit --from-sbatch`."""
