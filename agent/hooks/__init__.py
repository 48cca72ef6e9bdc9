"""Programs of the site that the agent runs before and after each task, and to check the node."""
