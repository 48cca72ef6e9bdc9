"""What is known of RDMA on a node, and the rules that follow from it. Pure: the agent reads, these
decide, and whoever plans for a gang can ask the same rules about every node."""
