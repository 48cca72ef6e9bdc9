"""Every node of a gang against every other: what `muster check` runs, one process a node.

It is shipped inside the job under its own name: Python 3.8, the standard library, nothing else of
Muster's. All connect to the first node's hub, which calls the rounds of a tournament and waits for
all before the next: so a node sends to one other at a time and is sent to by one. In each round the
one of a pair sends, then the other, on each network that both have: a connection, the bytes, their
checksum.

The first node prints what was found: JSON behind `# `, and sentences for what is wrong.
"""
