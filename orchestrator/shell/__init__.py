"""I/O of the coordinator: the owner of the state, agents' connections, timers, the log store."""
