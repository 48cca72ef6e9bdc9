"""Pure: what the coordinator knows and decides."""
