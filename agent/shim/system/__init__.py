"""The shim's use of Linux: system calls, users, cgroups, process trees, job files, an event loop.

The shim and the agent's own starters call it. It knows nothing of tasks.
"""
