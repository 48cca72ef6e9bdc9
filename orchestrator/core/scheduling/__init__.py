"""Which job starts next, on which nodes, with which GPUs and which network; and why one waits."""
