"""Start-up time and memory of shims."""
