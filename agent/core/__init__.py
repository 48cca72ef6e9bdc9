"""Pure: what this node should do next."""
