"""The commands for nodes, the cluster, its tokens and this client, one module each."""
