"""How fast a job gets going: `python -m benchmarks.launch`, or `./dev bench launch`."""
