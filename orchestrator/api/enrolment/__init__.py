"""Routes by which nodes join and renew their certificates."""
