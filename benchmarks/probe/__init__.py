"""The cost of probing a node's fabric."""
