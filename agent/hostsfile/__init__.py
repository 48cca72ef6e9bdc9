"""Atomic, reversible edits of /etc/hosts beside other writers.

`agent.gang.host_names` calls it. It does not know jobs, only named blocks of lines.
"""
