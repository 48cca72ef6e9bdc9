"""What waits: the owner of the state, the agents' connections, timers, the log store."""
