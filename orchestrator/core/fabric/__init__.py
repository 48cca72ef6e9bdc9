"""The fabric plan of a gang: which port of each node goes with which of the others.

`orchestrator.core.gangs` calls it. It knows nodes and their ports, not jobs or the state.
"""
