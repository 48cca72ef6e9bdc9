"""The program of `muster check`: one process per node, which tests every node against every other.

It is shipped inside the job under its own name, for Python 3.8, with the standard library and
nothing else of Muster's. All nodes connect to the hub on the first node. It starts the rounds of a
round-robin tournament and waits for all nodes between rounds, so a node sends to one peer and
receives from one peer at a time. In each round, the nodes of a pair send in turn, on each network
that both have: a connection, the bytes, their checksum.

The first node prints the results: JSON after `# `, and sentences for problems.
"""
