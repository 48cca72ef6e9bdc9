"""Output for users: tables, text, JSON, log lines and views.

The commands call it. Code here calls the coordinator only if it is given a client. It never prints
a job's output without escaping control characters for a terminal.
"""
