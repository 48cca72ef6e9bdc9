"""The coordinator's state and rules. Pure: no I/O."""
