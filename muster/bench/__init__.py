"""Benchmarks that run as jobs: the programs that nodes run, and what their output means. Pure but
for those programs, which the job's interpreter runs: they import the standard library and torch."""
