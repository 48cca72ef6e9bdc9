"""Shipping of the ranks' output to the coordinator, by byte offset.

The daemon runs one shipper for all tasks, and `agent.tasks` adds and removes their files. The file
on the node is the only buffer. The package never changes a file of a job, and never trusts the name
of one.
"""
