"""Protocol between the two daemons and their users: messages, identifiers, codes. Pure."""
