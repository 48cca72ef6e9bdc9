"""Editing /etc/hosts beside other writers, atomically, and undoing it.

`agent.gang.host_names` calls it. It knows no jobs, only blocks of lines with a name.
"""
