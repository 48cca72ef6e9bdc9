"""What the benchmark runs in processes of their own."""
