"""Programs that the benchmark runs in their own processes."""
