"""Whether the ranks of this node's tasks move, and where they stand when they do not."""
