"""The tasks of this node, one supervisor each, from creation or adoption to removal.

The daemon performs the effects of the core here. Nothing in this package decides: it starts shims,
relays their status to the owner of the state, and carries out orders.
"""
