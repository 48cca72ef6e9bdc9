"""Rules about a node's RDMA equipment: choice of HCAs, distance to GPUs, GIDs, environment.

The agent reads the files and these rules decide; the coordinator's plan of a gang applies the same
rules to every node. The package is pure and never reads a file.
"""
