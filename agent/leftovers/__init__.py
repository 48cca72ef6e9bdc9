"""Leftovers of earlier agent processes on this node: processes, units, directories, names.

The daemon finds and removes them at its start; `muster doctor` reports them. The package never
touches the tasks that the agent has adopted.
"""
