"""One node."""
