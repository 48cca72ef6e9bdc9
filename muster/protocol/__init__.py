"""Pure: what the two daemons and their users say to each other."""
