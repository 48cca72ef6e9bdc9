"""The hosts file of this node: the blocks of its tasks, and the proof that names lead to peers."""
