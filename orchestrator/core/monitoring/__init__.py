"""Monitoring of a running gang: hangs and their stacks, idle GPUs, traffic, checkpoints.

The engine and `gangs` call it with the observations of agents. It judges gangs and makes facts
about them; a stop goes through `failures.stops`. It never measures anything.
"""
