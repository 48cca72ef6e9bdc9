"""The tasks of this node, one supervisor each, from creation or adoption to removal.

The daemon performs the effects of the core here. This package makes no decisions: it starts shims,
relays their status to the owner of the state, and carries out orders.
"""
