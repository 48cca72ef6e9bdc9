"""What a probe of a node's fabric costs."""
