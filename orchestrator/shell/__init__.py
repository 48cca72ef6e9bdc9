"""I/O of the coordinator: the owner of the state, agents' connections, timers, the log store.

`orchestrator.server` builds it, and the API posts inputs to it. It carries out effects only after
their facts are committed. The core decides what happens to a job, never a module here.
"""
