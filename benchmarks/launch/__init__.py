"""Launch latency of a job: `python -m benchmarks.launch`, or `./dev bench launch`."""
