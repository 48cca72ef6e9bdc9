"""Rules about a node's RDMA equipment. Pure: the agent reads the files and these rules decide. A
planner of gangs can apply the same rules to every node.
"""
