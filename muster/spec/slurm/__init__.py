"""Slurm batch scripts as jobs, for `muster submit --from-sbatch`.

`muster.cli.input` calls it, and the parser asks it about Slurm's keys in a job file. The package
never runs a script, and refuses what it cannot translate instead of ignoring it.
"""
