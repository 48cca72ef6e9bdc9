"""Starting shims, speaking to them, finding them again."""
