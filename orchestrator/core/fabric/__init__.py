"""The fabric plan of a gang: the RDMA ports of its nodes, matched to each other.

`orchestrator.core.gangs` calls it. It knows nodes and their ports, not jobs or the state.
"""
