"""The commands about nodes, the cluster, its tokens and this client, one module each."""
