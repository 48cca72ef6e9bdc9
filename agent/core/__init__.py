"""The agent's rules: pure, no I/O."""
